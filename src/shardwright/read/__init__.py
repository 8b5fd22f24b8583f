"""Reading what was written: opens a store, inspects its shards, verifies every chunk. Reads with pread, never
a whole shard, and never writes."""
