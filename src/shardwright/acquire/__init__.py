"""From frames to sealed shards: slab assembly, worker pool, shard keeper, watermark."""
