"""The two gears of the tests: ``./tools/test`` runs those of a few minutes, ``./tools/test --all`` every one
but those that are marked ``slow``, which ``./tools/prove slow`` runs.

What needs processes, real disks, browsers or other projects' programs is of ``--all`` alone, as is any other
test of more than ``MOST_S``. Folders, files and tests are named here, with the reason, and nowhere else.
``LONG`` has the few long tests that ``./tools/test`` keeps all the same. ``SLOW`` has the tests of which each
case is marked ``slow``; of others some are, where their parameters stand.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
MOST_S = 2.0


def by_place(groups: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Returns the reason of each place that is listed under one."""
    return {place: reason for reason, places in groups.items() for place in places}


# folders, files and tests of --all alone, and why
WHOLE = by_place(
    {
        "processes are started, killed, stopped or starved": (
            "tests/acquire/test_dynamic_cell_atlas.py::test_whoever_ends_it_writes_the_block",
            "tests/acquire/test_encode_check.py",
            "tests/acquire/test_frame_parquet.py::test_frames_are_recovered_without_the_package",
            "tests/acquire/test_frame_parquet.py::test_it_goes_with_the_store",
            "tests/acquire/test_frame_parquet.py::test_rechunking_takes_along_what_the_table_records_alone",
            "tests/acquire/test_frame_parquet.py::test_resuming_without_the_package_is_refused",
            "tests/acquire/test_goes_on.py::test_a_copy_goes_on",
            "tests/acquire/test_goes_on.py::test_a_life_that_is_killed_at_any_moment_leaves_all_that_was_finished",
            "tests/acquire/test_goes_on.py::test_a_packed_store_goes_on",
            "tests/acquire/test_goes_on.py::test_a_store_that_a_job_has_changed_says_why_it_does_not_go_on",
            "tests/acquire/test_goes_on.py::test_the_receipts_are_kept_and_what_they_promise_is_verified",
            "tests/api/test_forgotten.py",
            "tests/bench",
            "tests/cli/test_compact.py",
            "tests/cli/test_compact_configured.py",
            "tests/cli/test_rechunk_and_pyramid.py",
            "tests/cli/test_recover.py",
            "tests/cli/test_view.py",
            "tests/compaction",
            "tests/crash",
            "tests/daemon",
            "tests/diagnose/measure/test_command.py",
            "tests/diagnose/measure/test_run.py",
            "tests/faults",
            "tests/ingest/test_chaos.py",
            "tests/ingest/test_daemon_killed.py",
            "tests/ingest/test_ended_sessions.py",
            "tests/ingest/test_opening_undone.py",
            "tests/ingest/test_sessions.py::test_a_stopping_daemon_seals_first_and_then_says_so",
            "tests/ingest/test_threads.py",
            "tests/layers/test_base_distribution.py",
            "tests/properties/test_image_acquisitions.py",
            "tests/read/test_open_xarray.py::test_xarray_finds_the_engine",
            "tests/repack/test_encode_check.py",
            "tests/soak",
            "tests/tools/test_demo.py",
            "tests/tools/test_left_out.py",
            "tests/tools/test_readme.py::test_example_of_a_camera_on_another_computer",
            "tests/tools/test_readme.py::test_example_of_the_client_with_the_shipped_configuration",
            "tests/tools/test_readme.py::test_example_of_the_in_process_writer",
            "tests/tools/test_readme.py::test_examples_in_environments_of_what_the_text_names",
            "tests/tools/test_recipes.py",
            "tests/wire/test_c_client.py",
            "tests/wire/test_c_garbage.py",
            "tests/wire/test_protocol_document.py::test_a_daemon_takes_the_clients_part_of_the_exchange",
        ),
        "real time passes": (
            "tests/ingest/test_access.py::test_a_client_that_stays_off_the_list_ends_with_an_access_error",
            "tests/ingest/test_access.py::test_a_client_may_send_all_of_its_credit_in_one_message",
            "tests/ingest/test_sessions.py::test_heartbeats_go_on_while_the_user_does_nothing",
            "tests/read/test_references.py::test_a_change_within_the_second_of_the_last_one_is_refused",
        ),
        "disks of their own are cut off, or replayed": (
            "tests/acquire/test_folders_and_power_cuts.py",
            "tests/power",
        ),
        "programs of others: viewers, cameras, buckets, earlier releases": (
            "tests/integrations",
            "tests/read/test_archives.py",
            "tests/read/test_at_addresses.py",
            "tests/read/test_references.py::test_a_bucket_is_read_by_its_address",
            "tests/read/test_references.py::test_a_server_of_files_is_read_by_its_address",
            "tests/read/test_joined_references.py::test_virtualizarr_reads_what_is_joined",
            "tests/read/test_references.py::test_virtualizarr_reads_files_of_kerchunk",
            "tests/repack/test_archive_file.py",
            "tests/repack/test_cropped_stores.py",
            "tests/repack/test_destination.py",
            "tests/repack/test_described_shards.py::test_the_commands",
            "tests/repack/test_executors.py",
            "tests/repack/test_hdf5_container.py",
            "tests/repack/test_lost_answers.py",
            "tests/repack/test_lost_names.py",
            "tests/repack/test_move.py",
            "tests/repack/test_move_again.py",
            "tests/repack/test_moved_away.py",
            "tests/repack/test_parity.py",
            "tests/repack/test_plain_arrays.py",
            "tests/repack/test_rechunk_transfer.py",
            "tests/repack/test_unusual_shards.py",
            "tests/upgrades",
            "tests/viewers",
            "tests/web/test_live_stores.py",
        ),
        "suites are run against broken copies, or twice": (
            "tests/mutation",
            "tests/tools/test_evidence.py::test_what_a_failed_test_leaves_is_in_its_report",
            "tests/world/test_mends.py",
            "tests/world/test_world.py::test_a_life_may_be_slow_as_long_as_it_goes_on",
            "tests/world/test_world.py::test_telling_changes_nothing",
            "tests/world/test_world.py::test_the_command_plays_every_kind",
        ),
        "every step of many is cut short, or held": (
            "tests/acquire/test_evidence.py::test_a_take_over_that_dies_before_it_has_told_leaves_all_in_doubt",
            "tests/acquire/test_frame_parquet.py::test_a_disk_that_is_full_for_it_alone_ends_with_the_table",
            "tests/acquire/test_frame_parquet.py::test_a_kill_at_any_call_leaves_none_that_differs",
            "tests/acquire/test_growing_axes.py::test_a_grown_store_is_repacked_as_others_are",
            "tests/acquire/test_in_place.py::test_a_dead_writers_acquisition_goes_on",
            "tests/acquire/test_live_files.py::test_another_process_sees_each_stored_slab",
            "tests/acquire/test_live_files.py::test_readers_see_no_wrong_pixel_whatever_happens",
            "tests/acquire/test_lost_answers.py",
            "tests/acquire/test_plain_arrays.py::test_a_store_is_taken_over_from_a_writer_that_lives",
            "tests/repack/test_upgrade_ome.py::test_whatever_kills_it_the_same_command_ends_it",
            "tests/read/test_held_readers.py::test_a_reader_that_is_held_at_any_look_gives_what_is_stored",
            "tests/read/test_held_readers.py::test_readers_that_are_stopped_at_random_beside_take_overs_see_no_fill",
        ),
        "more than two seconds of one test": (
            "tests/acquire/test_bookkeeping.py::test_sequence_set_equals_a_set",
            "tests/acquire/test_contrast.py::test_samples_of_many_channels_are_bounded",
            "tests/acquire/test_contrast.py::test_the_window_depends_on_the_frames_and_not_on_their_order",
            "tests/acquire/test_contrast.py::test_windows_of_a_store_that_was_killed_and_recovered",
            "tests/acquire/test_creation_undone.py::test_a_storage_call_that_fails",
            "tests/acquire/test_degrade.py::test_the_writer_in_process",
            "tests/acquire/test_durability.py::test_more_waiting_frames_than_staging_slots",
            "tests/acquire/test_reopen.py::test_a_full_disk_while_a_row_is_opened_again_waits_for_room",
            "tests/acquire/test_take_over.py::test_a_shard_row_that_the_old_writer_finishes_making_meanwhile_is_not_missed",
            "tests/api/test_claims.py::test_frames_that_an_earlier_process_staged_hold_no_slot",
            "tests/api/test_threads.py::test_after_a_call_that_was_interrupted_anywhere_others_go_on_or_are_told",
            "tests/edit/test_bucket_lost_answers.py::test_an_edit_is_done_whichever_answer_is_lost",
            "tests/edit/test_chunk_bucket.py::test_an_edit_holds_an_object_once_in_memory",
            "tests/edit/test_chunk_bucket.py::test_random_operations_do_as_the_memory_store_and_peers_read_the_shards",
            "tests/edit/test_chunk_store.py::test_random_operations_do_as_the_memory_store_and_peers_read_the_shards",
            "tests/edit/test_chunk_store.py::test_two_processes_patch_one_chunk_that_is_a_file_and_lose_nothing",
            "tests/edit/test_chunk_store.py::test_what_a_killed_edit_left_goes_with_its_array",
            "tests/edit/test_edit_plan.py::test_any_edits_make_the_shard_that_a_dictionary_makes",
            "tests/edit/test_edit_recovery.py::test_a_kill_at_every_call_leaves_the_old_chunks_or_the_new_ones",
            "tests/edit/test_region_edit.py::test_an_update_that_is_killed_has_changed_whole_shards_and_the_next_completes_it",
            "tests/edit/test_region_edit.py::test_any_updates_and_erasures_are_as_numpy_does_them",
            "tests/edit/test_region_edit.py::test_processes_that_paint_the_same_chunks_lose_nothing",
            "tests/edit/test_side_by_side.py::test_a_compaction_beside_an_editor_loses_no_update",
            "tests/edit/test_side_by_side.py::test_two_processes_that_update_one_shard_lose_no_update",
            "tests/foreign/test_older_stores.py::test_the_command_rechunks_an_array_by_its_name_below_the_root",
            "tests/foreign/test_hostile_numbers.py::test_each_command_ends_in_bounded_memory_and_in_one_line",
            "tests/fuzz/test_wire.py::test_a_side_that_lacks_a_check_is_caught",
            "tests/fuzz/test_wire.py::test_damaged_messages_hurt_neither_side",
            "tests/ingest/test_bad_messages.py::test_changed_messages_never_hurt_anybody_else",
            "tests/ingest/test_claims.py::test_a_client_that_dies_with_open_claims_loses_only_them",
            "tests/ingest/test_end_to_end.py::test_a_client_that_sends_but_never_reads_is_given_up",
            "tests/ingest/test_end_to_end.py::test_more_frames_than_the_ring_holds",
            "tests/ingest/test_images.py::test_a_plate_of_each_of_two_cameras_at_once",
            "tests/ingest/test_images.py::test_a_plate_whose_fields_come_from_two_cameras_at_once",
            "tests/ingest/test_metadata.py::test_updates_from_very_many_threads_are_all_written",
            "tests/ingest/test_telemetry.py::test_a_running_acquisition_shows_what_it_does",
            "tests/kernels/test_encode.py::test_chunk_sizes_around_a_block",
            "tests/layers/test_kept_errors.py::test_no_exception_is_kept",
            "tests/layers/test_kept_errors.py::test_no_raised_exception_holds_itself",
            "tests/layers/test_one_name.py::test_no_two_classes_have_the_same_name",
            "tests/read/test_commands.py::test_a_group_of_very_many_datasets_is_refused_at_once",
            "tests/read/test_live_view.py::test_a_reader_opens_nothing_for_writing",
            "tests/read/test_live_view.py::test_a_shard_row_that_is_opened_again_shows_all_its_frames_all_the_time",
            "tests/read/test_live_view.py::test_a_view_goes_on_when_another_writer_takes_over",
            "tests/read/test_live_view.py::test_chunks_without_shards_that_were_spilled_are_found",
            "tests/read/test_live_view.py::test_every_step_of_a_writer_shows_each_stored_frame",
            "tests/read/test_live_view.py::test_every_step_without_shards_shows_each_stored_frame",
            "tests/read/test_live_view.py::test_shards_in_a_second_root_are_found",
            "tests/read/test_missing_frames.py::test_memory_is_bounded",
            "tests/read/test_record.py::test_a_recompression_that_is_killed_at_any_point_leaves_it_true",
            "tests/read/test_joined_references.py::test_chunks_that_differ_along_the_axis_make_a_rectilinear_grid",
            "tests/read/test_joined_references.py::test_days_are_one_array",
            "tests/read/test_references.py::test_a_plate_comes_with_its_groups",
            "tests/read/test_references.py::test_arrays_of_others",
            "tests/read/test_references.py::test_every_array_is_read",
            "tests/read/test_references.py::test_parquet_is_written_file_by_file",
            "tests/read/test_references.py::test_parquet_refuses_what_zarr_v2_does_not_have",
            "tests/read/test_zarr_store.py::test_an_array_can_be_sent_to_another_process",
            "tests/read/test_zarr_store.py::test_dask_reads_a_running_acquisition_in_processes",
            "tests/recovery/test_links_of_a_store.py::test_a_folder_that_is_swapped_for_a_link_between_two_calls",
            "tests/recovery/test_links_of_a_store.py::test_every_state_is_there",
            "tests/recovery/test_links_of_a_store.py::test_nothing_behind_a_link_changes",
            "tests/repack/test_compact_store.py::test_an_interrupted_job_goes_on_without_doing_finished_shards_again",
            "tests/repack/test_compact_store.py::test_shards_of_another_owner_are_one_error_before_anything_is_begun",
            "tests/repack/test_pack_shard.py::test_any_layout_reads_the_same_and_has_no_gap",
            "tests/repack/test_pyramid.py::test_a_run_that_asks_for_something_else_begins_anew",
            "tests/repack/test_rechunk.py::test_too_many_shards_are_refused_before_any_is_made",
            "tests/repack/test_rechunk_chains.py::test_codecs_that_round_need_the_users_word",
            "tests/repack/test_rechunk_chains.py::test_the_command_takes_chains_as_json",
            "tests/repack/test_unknown_bytes.py::test_the_command_names_the_shard_packs_the_others_and_fails",
            "tests/tools/test_readme.py::test_example_of_a_running_acquisition_over_http",
            "tests/web/test_connections.py::test_a_flood_of_silent_connections_keeps_nobody_out",
            "tests/web/test_connections.py::test_who_does_not_take_the_answer_is_cut_off",
            "tests/web/test_stores.py::test_a_root_that_is_a_link_itself_is_fine",
            "tests/web/test_stores.py::test_chunks_of_a_store_that_is_being_moved_are_gone",
            "tests/web/test_stores.py::test_pages_elsewhere_may_read_stores_where_the_configuration_lets_them",
            "tests/web/test_viewer.py::test_a_link_leads_to_the_client_with_the_store_in_it",
            "tests/web/test_viewer.py::test_a_store_whose_pixels_cannot_be_read_is_opened_all_the_same",
            "tests/web/test_viewer.py::test_channels_that_are_not_as_they_should_be_hide_no_store",
            "tests/web/test_viewer.py::test_odd_names_lead_to_their_store",
            "tests/web/test_viewer.py::test_the_list_is_bounded_and_says_so",
            "tests/web/test_viewer.py::test_the_page_lists_what_cannot_be_read",
        ),
        "many cases of what others show in few": (
            "tests/acquire/test_contrast.py::test_samples_of_many_images_take_the_memory_that_is_planned",
            "tests/acquire/test_creation_undone.py::test_a_part_that_cannot_be_made",
            "tests/acquire/test_creation_undone.py::test_a_resume_that_fails_leaves_the_store_and_nothing_else",
            "tests/acquire/test_creation_undone.py::test_a_thread_that_cannot_be_started",
            "tests/acquire/test_metadata.py::test_a_kill_loses_no_update_that_returned",
            "tests/acquire/test_overwrite.py::test_a_removal_that_is_killed_before_the_name_goes_is_finished",
            "tests/acquire/test_split_rows.py::test_images_of_which_one_has_shards_of_one_slab",
            "tests/acquire/test_storage_forms.py::test_it_is_seen_while_it_is_written",
            "tests/acquire/test_storage_forms.py::test_the_peers_read_it",
            "tests/acquire/test_take_over.py::test_a_full_disk_at_any_sync_of_a_folder_takes_nothing",
            "tests/acquire/test_take_over.py::test_a_recovery_that_is_taken_over_itself_touches_nothing_of_its_successor",
            "tests/acquire/test_take_over.py::test_a_take_over_that_is_cut_short_is_begun_again",
            "tests/acquire/test_take_over.py::test_frames_that_the_old_writer_hands_on_meanwhile_are_not_missed",
            "tests/acquire/test_take_over.py::test_of_two_take_overs_at_once_one_has_the_store_and_every_frame",
            "tests/api/test_store_names.py::test_a_store_of_any_name_is_written_read_overwritten_and_changed",
            "tests/api/test_store_names.py::test_what_a_kill_leaves_of_it_is_recovered",
            "tests/codecs/test_decode_bounds.py::test_a_bomb_in_a_shard_within_a_chunk_is_refused",
            "tests/codecs/test_decode_bounds.py::test_one_within_another_is_refused_and_so_is_one_before_a_checksum",
            "tests/covering/test_lives.py",
            "tests/edit/test_bucket_lost_answers.py::test_what_another_writer_does_before_the_answer_is_lost_is_kept",
            "tests/edit/test_edit_recovery.py::test_a_kill_at_every_call_of_a_recovery_is_recovered",
            "tests/fuzz/test_journal.py::test_damaged_files_are_judged_as_format_md_says",
            "tests/fuzz/test_stored_files.py::test_whatever_a_file_of_ours_says_costs_little_and_the_rest_goes_on",
            "tests/read/test_box_reader.py::test_any_box_is_that_of_the_array",
            "tests/read/test_held_readers.py::test_a_frame_of_another_place_is_not_believed",
            "tests/read/test_held_readers.py::test_a_frame_that_may_be_in_a_damaged_staging_area_is_an_error",
            "tests/read/test_held_readers.py::test_a_store_that_changes_without_end_is_an_error",
            "tests/read/test_live_view.py::test_a_dead_writer_leaves_what_recovery_finds",
            "tests/read/test_not_understood.py::test_a_second_array_that_is_not_understood_stops_them_before_the_first_is_changed",
            "tests/read/test_record.py::test_a_writer_that_is_killed_around_it_and_goes_on",
            "tests/read/test_record.py::test_an_array_that_is_named_twice_is_one",
            "tests/read/test_spellings.py::test_a_legal_spelling_is_opened_by_a_live_view",
            "tests/read/test_spellings.py::test_an_illegal_spelling_is_refused_by_each_command",
            "tests/read/test_verify_store.py::test_every_flipped_bit_of_a_shard_with_checksums_is_found",
            "tests/read/test_verify_store.py::test_every_truncation_is_found",
            "tests/repack/test_degraded_stores.py",
            "tests/repack/test_pack_chains.py",
            "tests/repack/test_rechunk_chains.py::test_a_legal_spelling_becomes_a_store_of_today",
            "tests/repack/test_rechunk_chains.py::test_any_chain_is_written",
            "tests/web/test_connections.py::test_who_does_not_finish_a_request_is_cut_off",
            "tests/web/test_stores.py::test_no_page_elsewhere_reads_a_store_unless_the_configuration_says_so",
            "tests/web/test_viewer.py::test_a_collection_is_listed_and_opened_by_its_first_image",
            "tests/web/test_viewer.py::test_all_images_of_a_collection_are_shown_side_by_side_or_those_that_are_named",
            "tests/web/test_viewer.py::test_one_damaged_store_hides_no_other",
            "tests/world/test_readers.py::test_readers_change_nothing",
            "tests/world/test_readers.py::test_readers_find_what_breaks_a_promise",
        ),
        "many, or much": (
            "tests/acquire/test_acquisition.py::test_any_array_in_any_order",
            "tests/acquire/test_chunk_order.py::test_gaps_are_given_back_and_packed_away",
            "tests/acquire/test_flat_cost.py",
            "tests/api/test_memory_of_one_more.py",
            "tests/acquire/test_frame_table_writer.py::test_memory_and_metadata_do_not_grow_with_the_rows",
            "tests/acquire/test_levels.py::test_they_equal_what_pyramid_makes_later",
            "tests/acquire/test_open_images.py",
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
)

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
LONG = by_place(
    {
        "the simulation": (
            "tests/acquire/test_visible_promise.py::test_whatever_is_told_is_there",
            "tests/world/test_edits.py::test_every_promise_is_kept",
            "tests/world/test_folders.py::test_the_folder_of_a_shard_is_durable",
            "tests/world/test_found.py::test_what_was_found_once_is_found_no_more",
            "tests/world/test_readers.py::test_every_promise_to_readers_is_kept",
            "tests/world/test_sharpness.py::test_a_shard_without_a_record_is_not_taken_for_another_of_its_name",
            "tests/world/test_sharpness.py::test_a_staged_frame_that_cannot_be_read_excuses_no_other",
            "tests/world/test_sharpness.py::test_damage_in_the_frame_log_excuses_no_frame_elsewhere",
            "tests/world/test_sharpness.py::test_what_a_power_cut_takes_was_acknowledged",
            "tests/world/test_world.py::test_a_finished_store_that_fails_its_verification_breaks_a_promise",
            "tests/world/test_world.py::test_every_promise_is_kept",
            "tests/world/test_world.py::test_every_promise_is_kept_while_stores_get_their_names",
            "tests/world/test_world.py::test_every_promise_is_kept_with_shared_journals",
        ),
        "some kills, and a daemon's life": (
            "tests/crash/test_kills.py::test_some_kills_break_no_promise",
            "tests/daemon/test_serve.py::test_cameras_on_both_endpoints_end_up_in_stores",
        ),
        "kernels, formats and parsers": (
            "tests/acquire/test_acquisition.py::test_frames_in_order",
            "tests/codecs/test_decode_bounds.py::test_a_bomb_is_refused",
            "tests/codecs_decode/test_decode_chunk.py::test_a_bomb_does_not_unfold",
            "tests/config/test_load.py::test_what_is_no_configuration_at_all",
            "tests/kernels/test_encode.py::test_blocks_that_differ_from_those_that_were_sampled",
            "tests/kernels/test_runs.py::test_any_runs_read_back",
            "tests/kernels/test_runs.py::test_no_capacity_is_exceeded",
            "tests/kernels/test_runs.py::test_planes_of_pixels_read_back",
            "tests/kernels/test_stored_forms.py::test_stored_forms_equal_their_twins_and_decode",
            "tests/shard/test_frame_log.py::test_every_flipped_bit_is_found",
            "tests/shard/test_journal.py::test_frames_are_found_wherever_they_were_written",
        ),
        "tables and rules": (
            "tests/api/test_examples.py::test_an_example_is_true",
            "tests/covering/test_table.py::test_the_program_refuses_what_the_table_does_and_nothing_else",
            "tests/diagnose/test_start.py::test_what_serve_refuses_is_found",
            "tests/layers/test_clocks.py::test_every_use_of_the_wall_clock_is_argued",
            "tests/layers/test_hints.py::test_a_hint_begins_with_a_capital_letter_or_with_code_in_backticks",
        ),
        "a store that is another one while it is served": (
            "tests/web/test_web_app.py::test_a_live_store_that_is_replaced_at_once_is_not_served_as_it_was",
            "tests/web/test_web_app.py::test_a_live_store_that_went_or_was_replaced_is_another_one",
        ),
    }
)

# tests of neither gear, each with the mark where it stands
SLOW = by_place(
    {
        "campaigns: every call, moment, order or command": (
            "tests/covering/test_lives.py::test_any_three_values",
            "tests/crash/test_fencing.py::test_wherever_it_was_stopped",
            "tests/faults/test_full_disk.py::test_every_moment",
            "tests/faults/test_io_errors.py::test_a_system_call_that_fails_at_other_times",
            "tests/faults/test_io_errors.py::test_an_error_at_every_call",
            "tests/faults/test_io_errors.py::test_disks_that_fail_for_a_while",
            "tests/integrations/micromanager/test_images.py::test_every_order_with_a_grid_at_each_position",
            "tests/recovery/test_links_of_a_store.py::test_nothing_behind_a_link_changes_by_any_command",
            "tests/world/test_mends.py::test_each_mend_that_is_taken_out_is_found",
        ),
        "half a minute passes": ("tests/faults/test_stalls.py::test_half_a_minute",),
        "packages come from the package index": (
            "tests/daemon/test_instance.py::test_the_readmes_recipe",
            "tests/layers/test_base_distribution.py::test_an_installation_of_the_client_alone",
        ),
        "every kernel is compiled": ("tests/daemon/test_first_start.py::test_a_cache_that_is_really_empty",),
    }
)


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
        if item.path.is_relative_to(ROOT) and is_whole(f"{item.path.relative_to(ROOT)}::{item.name}"):
            item.add_marker(pytest.mark.whole)
