"""Repacking what was written fast into what is read well: packed shards, denser codecs, other chunks,
pyramids, other places. All restartable."""
