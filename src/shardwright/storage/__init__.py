"""The seam to the filesystem: preallocate, map, punch, sync, rename, rings; failpoints."""
