"""What tests, proofs and soaks start and judge by: one way for each.

daemon.py         ``shardwright serve`` in a process of its own, and the commands that are run against it
fork_server.py    processes to kill that cost a fork each
"""
