"""The scanner of unfinished stores, files -> facts, for recovery, live views and compaction: each file by
itself (``unfinished_store``), or a whole store (``store_scan``). Changes and locks nothing.

Recovery alone takes the whole scan, which checks the checksums of stored chunks. Live views and compaction
find files here and interpret them themselves: a look must not checksum the store, and a live view reads only
slabs that it has not yet seen stored."""
