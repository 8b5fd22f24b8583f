"""tools/bench: writers compared on the same frames, layout and codec, interleaved in one run, final sync counted for everyone.

case.py      what is written: frames, layout, codec
contender.py the one interface of every writer, and the functions they share (sync, reading a shard back)
peers/       one file for each writer or floor; peers/__init__.py lists them
child.py     a contender in its own process, driven by lines of JSON
parent.py    starts the children, interleaves the rounds, samples CPU and memory
report.py    medians, spread and ratios as a table or JSON

compaction.py, compaction_report.py    tools/bench compact: ways to make an acquired store gapless
page.py                                tools/bench page: what the status page costs the cameras
"""
