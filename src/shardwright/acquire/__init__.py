"""From frames to sealed shards: slab assembly, worker pool, sealer, watermark."""
