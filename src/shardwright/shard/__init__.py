"""Shards, as FORMAT.md describes them: layout (pure arithmetic), index, journal, the open shard and its
sealing."""
