"""Doors for other projects, each importable alone and installed by an extra of its own."""
