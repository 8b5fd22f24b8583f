"""What an array is: its specification, its chunk grid, its zarr.json and its OME-Zarr metadata. Portable; no
I/O."""
