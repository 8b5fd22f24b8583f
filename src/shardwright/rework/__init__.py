"""Changing finished stores: packed, with denser codecs, other chunks or levels, in another place, with other
values.

    references/ to chunks where they lie: kerchunk, icechunk
    chunks/     a store of zarr-python in which each inner chunk is a key
    edit/       updates of shards, and of regions (EDIT.md)
    jobs/       on a store where it is: pack, rechunk, pyramid (README.md)
    transfer/   to a folder, to S3
    here        one shard, for all of these: read as bytes (source_shard) or as values (region_reader,
                made_values), planned (pack_plan, unknown_bytes), encoded (chunk_encoder), replaced
                (shard_copy, shard_record), refused (change_checks)
    runtime/    one restartable job: tasks, executors, throttle, pause, work folder, report

Imports point down this list. Every job may be interrupted and run again.
"""
