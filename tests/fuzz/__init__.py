"""Fuzzing of what reads bytes that others wrote. Each module names its command; the quick suite runs a few
thousand inputs of each.

    python -m tests.fuzz.journal --inputs 1000000      damaged journals and staging areas, a million of each
    python -m tests.fuzz.wire --inputs 1000000         damaged messages to the daemon and to the client, a
    million to each
    python -m tests.fuzz.stored_files                  every file that we keep in a store, field by field, in
    the hands of the commands; with names of formats only these

Recorded on 2026-11-21, seed 20261121, files of 24,576 bytes: no crash, no hang, no row misjudged.

    journal    1,000,000 inputs, 543,259 accepted and 456,741 refused, most allocated by one 12,958 bytes; in
               332 s
    staging    1,000,000 inputs, 481,153 accepted and 518,847 refused, most allocated by one 13,178 bytes; in
               275 s

The same day and seed, on a busy machine: no exception but the protocol's own, no hang, no more memory than 1
MiB and 64 times the message.

    daemon     1,000,000 inputs, 92,471 batches taken, 588,818 connections and 148,825 sessions refused; in
               1,835 s
    client     1,000,000 inputs, 161,682 acted upon, 488,990 refused, 248,997 ended their stream; in 1,502 s
"""
