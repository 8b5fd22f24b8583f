"""Sockets, keys and connections of the ingest thread. Sessions stand above, in the parent folder."""
