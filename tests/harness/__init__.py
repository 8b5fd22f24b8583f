"""What tests, proofs and soaks start and judge by: one way for each.

json_process.py   a process that says one line of JSON after the other, and the environment of every other
daemon.py         ``shardwright serve`` in a process of its own, and the commands that are run against it
ingest_daemon.py  a daemon in this process
daemon_config.py  a configuration with heartbeats and intervals short enough for a test
camera.py         a scripted camera in a process of its own, and the frames it sends (frames.py)
store_contents.py the contents of a store, judged by zarr-python alone
fork_server.py    processes to kill that cost a fork each
"""
