"""tools/bench: writers compared on the same frames, layout and codec, interleaved in one run, final sync
counted for everyone.

case.py      what is written: frames, layout, codec
contender.py the one interface of every writer, and the functions they share (sync, reading a shard back)
peers/       one file for each writer or floor; peers/__init__.py lists them
child.py     a contender in its own process, driven by lines of JSON (json_process.py)
parent.py    starts the children, interleaves the rounds, samples CPU and memory
report.py    medians, spread and ratios of one run as a table or JSON

The record (tools/bench record):

figures.py       the table: comparisons, what is asked of them, what is asked of the parts
run_record.py    runs all of it and appends to RECORD.jsonl (record.py), with what machine.py says of the
                 machine
outcomes.py      what the rounds say about each figure: reached, or which floor binds
latency.py, small.py, cameras.py, flat.py, prediction.py    the parts; each is a command too (part_command.py)
rig.py, camera_process.py                    the daemon and the cameras that parts are measured with
record_table.py, chart.py, digest.py         a record as text, as chart.svg, as the README's table

compaction.py, compaction_report.py    tools/bench compact: ways to make an acquired store gapless
page.py                                tools/bench page: what the status page costs the cameras
"""
