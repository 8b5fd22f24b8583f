"""``python -m shardwright.cli``: the same as the ``shardwright`` command."""

from .app import main

main()
