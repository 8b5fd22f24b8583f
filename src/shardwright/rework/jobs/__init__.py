"""The jobs on a store where it is: packed shards (compaction), other chunks, levels of lower resolution."""
