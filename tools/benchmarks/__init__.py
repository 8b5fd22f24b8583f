"""tools/bench: writers compared on the same frames, layout and codec, interleaved in one run, the final sync
counted for all.

peers/         the writers and floors, a module each; the package has their interface and their list
cases/         the package has the frames, layout and codec that are written; throughput.py the comparisons of
               writers; each other module is a part of the record
contest.py     interleaves the rounds of contenders, each in a process of its own
testbed.py     a daemon and cameras in processes of their own
second_writer.py  a program that dirties pages of the same disk meanwhile
processes.py   drives such a process by lines of JSON; its CPU time and memory
run.py         runs comparisons and parts and makes a record of them
record.py      the format of RECORD.jsonl
table.py       a record as text and as the tables of the READMEs
chart.py       a record as chart.svg
"""
