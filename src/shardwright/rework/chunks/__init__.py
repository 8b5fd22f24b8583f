"""A store of zarr-python in which each inner chunk is a key, on a disk or behind obstore (EDIT.md)."""
