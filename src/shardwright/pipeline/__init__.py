"""From frames to sealed shards: slab assembly, worker pool, shard keeper, watermark, and the in-process writer."""
