"""The two gears of the tests: ``./tools/test`` runs those of a few minutes, ``./tools/test --all`` every one
but the campaigns that are marked ``slow``.

What needs processes, real disks, browsers or other projects' programs is of ``--all`` alone, as is any other
test of more than ``MOST_S``. Folders and files are named here, with the reason; single tests are marked
``whole`` where they stand. ``LONG`` has the few tests that ``./tools/test`` keeps all the same.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
MOST_S = 2.0

_BY_REASON = {
    "processes are started, killed, stopped or starved": (
        "tests/bench",
        "tests/compaction",
        "tests/crash",
        "tests/daemon",
        "tests/faults",
        "tests/soak",
        "tests/cli/test_compact.py",
        "tests/cli/test_compact_configured.py",
        "tests/cli/test_recover.py",
        "tests/cli/test_rechunk_and_pyramid.py",
        "tests/cli/test_view.py",
        "tests/diagnose/measure/test_command.py",
        "tests/diagnose/measure/test_run.py",
        "tests/layers/test_base_distribution.py",
        "tests/properties/test_image_acquisitions.py",
        "tests/tools/test_demo.py",
        "tests/tools/test_left_out.py",
        "tests/tools/test_readme.py::test_example_of_a_camera_on_another_computer",
        "tests/tools/test_readme.py::test_example_of_the_client_with_the_shipped_configuration",
        "tests/tools/test_readme.py::test_example_of_the_in_process_writer",
        "tests/ingest/test_sessions.py::test_a_stopping_daemon_seals_first_and_then_says_so",
        "tests/ingest/test_threads.py::test_a_signal_handler_closes",
    ),
    "disks of their own are cut off, or replayed": (
        "tests/power",
        "tests/acquire/test_folders_and_power_cuts.py",
    ),
    "programs of others": (
        "tests/integrations",
        "tests/viewers",
        "tests/web/test_live_stores.py",
        "tests/upgrades",
    ),
    "the suites are run against broken copies": ("tests/mutation",),
    "every step of many is cut short, or held": (
        "tests/acquire/test_lost_answers.py",
        "tests/acquire/test_plain_arrays.py::test_recovery_that_dies_at_any_step_is_begun_again",
        "tests/acquire/test_in_place.py::test_a_dead_writers_acquisition_goes_on",
        "tests/acquire/test_live_files.py::test_what_a_kill_leaves_is_read_as_it_lies_and_completed",
        "tests/acquire/test_live_files.py::test_readers_see_no_wrong_pixel_whatever_happens",
        "tests/acquire/test_live_files.py::test_another_process_sees_each_stored_slab",
        "tests/acquire/test_evidence.py::test_a_take_over_that_dies_before_it_has_told_leaves_all_in_doubt",
        "tests/acquire/test_growing_axes.py::test_a_grown_store_is_repacked_as_others_are",
        "tests/acquire/test_plain_arrays.py::test_a_store_is_taken_over_from_a_writer_that_lives",
        "tests/read/test_held_readers.py::test_a_reader_that_is_held_at_any_look_gives_what_is_stored",
    ),
    "many, or much": (
        "tests/acquire/test_flat_cost.py",
        "tests/acquire/test_open_images.py",
        "tests/acquire/test_acquisition.py::test_any_array_in_any_order",
        "tests/acquire/test_chunk_order.py::test_gaps_are_given_back_and_packed_away",
        "tests/acquire/test_frame_table_writer.py::test_memory_and_metadata_do_not_grow_with_the_rows",
        "tests/acquire/test_levels.py::test_they_equal_what_pyramid_makes_later",
        "tests/acquire/test_split_rows.py::test_frames_in_any_order_are_stored",
        "tests/client/test_append_many.py::test_dropped_ones_are_told_of_in_their_order_and_beyond_a_bound_only_counted",
        "tests/client/test_link.py::test_no_more_frames_without_pixels_are_on_their_way_than_the_daemon_takes",
        "tests/client/test_outbox.py::test_descriptors_of_dropped_frames_are_bounded_and_all_are_counted",
        "tests/kernels/test_cold_start.py",
        "tests/kernels/test_other_modes.py",
        "tests/properties/test_round_trip.py",
        "tests/read/test_flipped_bits.py",
    ),
}

# folders, files and tests of --all alone, and why
WHOLE = {place: reason for reason, places in _BY_REASON.items() for place in places}

# what ./tools/test keeps of them: a daemon's life, some kills, and what takes little
KEPT = frozenset(
    (
        "tests/crash/test_kills.py::test_some_kills_break_no_promise",
        "tests/daemon/test_control.py",
        "tests/daemon/test_events.py",
        "tests/daemon/test_places.py",
        "tests/daemon/test_repeats.py",
        "tests/daemon/test_snapshot.py",
        "tests/daemon/test_serve.py::test_cameras_on_both_endpoints_end_up_in_stores",
    )
)

# tests of ./tools/test above MOST_S, and what they are kept for
LONG: dict[str, str] = {}


def is_whole(test: str) -> bool:
    """Returns whether a test (its file, or ``FILE::NAME``) is of ``--all`` alone by its place."""
    test = test.partition("[")[0]
    path = PurePosixPath(test.partition("::")[0])
    places = {test, str(path), *map(str, path.parents)}
    return not places.isdisjoint(WHOLE) and places.isdisjoint(KEPT)


def is_left_out(path: Path, marks: str) -> bool:
    """Returns whether nothing of this file or folder is of the gear that ``marks`` (pytest's -m) asks for."""
    if "not whole" not in marks or not path.is_relative_to(ROOT):
        return False
    place = str(path.relative_to(ROOT))
    return is_whole(place) and not any(kept.startswith((f"{place}/", f"{place}::")) for kept in KEPT)


def mark(items: Iterable[pytest.Item]) -> None:
    """Marks the tests that are of ``--all`` alone by their place."""
    for item in items:
        if is_whole(f"{item.path.relative_to(ROOT)}::{item.name}"):
            item.add_marker(pytest.mark.whole)
