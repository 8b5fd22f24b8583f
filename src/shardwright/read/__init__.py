"""Looking at what was written: open a store, inspect its shards, verify every chunk. Reads with pread, never
a whole shard, never writes."""
