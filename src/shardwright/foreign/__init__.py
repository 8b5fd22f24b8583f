"""Arrays and groups of older spellings, as documents of Zarr v3: Zarr v2, the first sharding prototype, and
the sharding storage transformer 1.0. Nothing is written here, and no other room knows these spellings."""
