"""Shards, as FORMAT.md describes them: layout (pure arithmetic), index, the open shard and how it is
sealed."""
