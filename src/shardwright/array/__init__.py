"""The description of an array: its specification, chunk grid, zarr.json and OME-Zarr metadata. Portable; no
I/O."""
