"""The scanner of unfinished stores, files -> facts, for recovery, live views and compaction: each file by
itself (``unfinished_store``), or a whole store (``store_scan``). Changes and locks nothing."""
