"""Repacking of stores, which were written fast, so that they are read well: packed shards, denser codecs,
other chunks, pyramids, other places. Every job may be interrupted and run again.

    jobs/       on a store where it is: pack, rechunk, pyramid
    transfer/   to a folder, to S3
    here        the packed form of a shard, which jobs and transfers share
    runtime/    one restartable job: tasks, executors, throttle, pause, work folder, report

Imports point down this list.
"""
