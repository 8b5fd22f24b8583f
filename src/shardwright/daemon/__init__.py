"""The running daemon: how its rooms are joined, its lifecycle, and its status and events."""
