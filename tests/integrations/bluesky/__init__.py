"""The door for bluesky, in runs of its own run engine, read back from a tiled server."""
