"""The failpoints that stories choose among: every one of the writer and of recovery, so that a fault can be
drawn for each of them. A point that these tables lack is a defect of the world, told when it is reached."""

from __future__ import annotations

import re


def _points(kind: str, whats: str) -> list[str]:
    return [f"{kind}.before_{what}" for what in whats.split()]


_TABLE_FILE = "create preallocate header read sync replace clear copy delete"

_BY_KIND = {
    "ballast": "fill open release",
    "boot": "remove",
    "copy": "create discard preallocate sync write",
    "directory": "create look sync",
    "files": "renew second_name sync write",
    "folder": "rename",
    "growing": "clear create cut delete preallocate sync truncate write",
    "journal": f"{_TABLE_FILE} frames chunks end",
    "leftovers": "remove",
    "lock": "create delete open rename take write",
    "log": "append clear clear_sync create cut header payload preallocate sync",
    "recover": "delete set_aside",
    "replace": "clear create delete discard open rename sync write",
    "replaced": "give_up put_back remove remove_folder",
    "sealed": "read",
    "shard": "create delete hide index link live_index live_name live_replace preallocate read rename "
    "replace reserve sync truncate write",
    "shard_row": "remove",
    "slots": "part store write",
    "staging": "clear create header preallocate read sync write",
    "store": "create exchange lock remove rename set_aside sync take_name withdraw",
    "sums": "lock open sync write",
    "table": "create delete sync",
    "take_over": "copy delete",
    "workspace": "manifest remove",
}

# by name: why no fault is drawn for it
LEFT_OUT = {
    "sealer.before_command": "no call of the disk follows",
    "sealer.before_commit": "no call of the disk follows",
    "slots.after_store": "no call of the disk follows",
    "journal.after_chunks": "a write that is made, and answered by an error, is for written stories",
    "moved.before_take_name": "stores are not moved to other folders",
    "moved.before_remove": "stores are not moved to other folders",
    **dict.fromkeys(_points("names", "rename set_aside"), "finished stores are not renamed or deleted"),
    "store.before_create_spilled": "there is one disk",
    "store.before_remove_spilled": "there is one disk",
    **dict.fromkeys(_points("archive", "delete remove_work_folder rename"), "no store is made one file"),
    **dict.fromkeys(
        _points(
            "edit",
            "clear clear_leftover cut delete_file delete_journal open remove_folder reserve sync touch write",
        ),
        "edits have their own world",
    ),
    **dict.fromkeys(
        _points(
            "compact",
            "attribute clear copy_object delete delete_object delete_part delete_source delete_spilled "
            "deleting exchange forget index put_object put_parts read_back record remove "
            "remove_source_folder remove_work_folder trial truncate write",
        ),
        "packing has a world of its own",
    ),
    **dict.fromkeys(
        _points("parity", "copy delete delete_sync link publish put_back remove_folder sync time"),
        "parity is made of finished stores, and drawn with packing",
    ),
}

DRAWN = tuple(point for kind, whats in sorted(_BY_KIND.items()) for point in _points(kind, whats))
# while a process makes the store, or takes it up
OPENING = tuple(
    point
    for point in DRAWN
    if not point.startswith(("folder.", "leftovers.", "sealed.", "slots.", "sums.", "table."))
)
# of a batch of shard rows that is prepared, and of the end of each of them
OF_BATCHES = (
    *_points("journal", "create preallocate header sync end delete"),
    *_points("shard", "create preallocate"),
    "directory.before_sync",
)
_CHANGES_NAMES = re.compile(
    "clear|create|delete|discard|exchange|give_up|hide|link|live_name|live_replace|lock|manifest|open|put_back|"
    "remove|remove_folder|rename|replace|second_name|set_aside|take_name|withdraw"
)
KNOWN = frozenset((*DRAWN, *LEFT_OUT))


def changes_names(point: str) -> bool:
    """Whether a change of names may follow."""
    return _CHANGES_NAMES.fullmatch(point.partition(".before_")[2]) is not None
