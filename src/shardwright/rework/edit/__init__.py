"""Updates of shards: chunks are overwritten, appended or erased, by strategy (EDIT.md)."""
