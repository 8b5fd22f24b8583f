"""The only access to the filesystem: preallocate, map, punch, sync, rename, rings; failpoints."""
