"""A Python that imports all of shardwright takes a second of a processor to start. Tests fork theirs from one
that has it imported (``harness/python.py``). Where one starts anew, it is listed here, with what for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.harness.gears import by_place

TESTS = Path(__file__).parents[1]
# how a Python is started anew: named, or asked for
MAY_START = re.compile(r"\bexecutable\b|\bCLI\b|\bfresh=True\b|\boutput=|\bget_context\b")


ALLOWED = by_place(
    {
        "it is what others are forked from, compared with or given": (
            "harness/daemon.py::CLI",
            "harness/daemon.py::DaemonProcess",
            "harness/fork_server.py::ForkServer",
            "tools/test_python.py::start",
        ),
        "what is imported, by which word, and what is missing": (
            "api/test_public_names.py::loaded_by",
            "cli/test_app.py::test_a_script_loads_nothing_that_draws",
            "cli/test_app.py::test_commands_that_are_not_asked_for_are_not_imported",
            "cli/test_app.py::test_help_lists_every_command",
            "cli/test_app.py::test_quick_commands_load_nothing_heavy",
            "client/test_import.py::run",
            "daemon/test_web.py::test_without_the_section_there_is_no_page_and_nothing_is_imported",
            "integrations/mesospim/test_mesospim.py::test_the_client_alone_suffices",
            "layers/test_base_distribution.py::without_the_daemons_modules",
            "read/test_verify_store.py::test_a_check_loads_no_kernels",
            "layers/test_portable_client.py::test_the_client_imports_without_linux_and_without_compilers",
            "read/test_at_addresses.py::test_what_is_missing_for_an_address_is_named",
            "read/test_open_xarray.py::test_without_xarray_the_extra_is_named",
            "read/test_open_xarray.py::test_xarray_finds_the_engine",
            "read/test_zarr_store.py::test_a_missing_zarr_python_is_named_with_what_installs_it",
            "wire/test_c_client.py::test_examples_in_c_cpp_and_python",
        ),
        "the first start: kernels are compiled, cached, or compiled in another mode": (
            "daemon/test_first_start.py::test_a_cache_that_is_really_empty",
            "daemon/test_first_start.py::test_a_daemon_that_is_drained_while_kernels_are_compiled_never_says_that_it_is_ready",
            "daemon/test_first_start.py::test_a_signal_while_kernels_are_compiled_ends_the_daemon_in_good_order",
            "daemon/test_first_start.py::test_a_start_that_compiles_is_told_to_everybody_and_clients_wait",
            "daemon/test_first_start.py::test_the_page_says_what_a_start_waits_for",
            "daemon/test_kernel_cache.py::PROGRAM",
            "daemon/test_kernel_cache.py::test_what_was_installed_need_not_be_compiled",
            "kernels/test_cold_start.py::start",
            "kernels/test_other_modes.py::test_kernels_in_another_mode",
        ),
        "a daemon as a shell, a service or an installation starts it": (
            "daemon/test_instance.py::test_a_daemon_runs_as_the_service_would_start_it",
            "daemon/test_instance.py::test_the_readmes_recipe",
            "daemon/test_instance.py::test_what_the_configuration_uses_is_named_where_it_is_missing",
            "daemon/test_serve.py::test_cameras_on_both_endpoints_end_up_in_stores",
            "harness/fresh_environment.py::PIP",
            "upgrades/__main__.py::CLI",
            "upgrades/__main__.py::die",
        ),
        "another library is loaded before it, or it is under another program": (
            "integrations/micromanager/test_command.py::command",
            "integrations/ome_writers/test_suite.py::test_the_outcomes_of_a_suite_are_without_tests_that_skip_themselves",
            "daemon/test_clock_jumps.py::test_a_clock_that_jumps_while_frames_arrive_changes_nothing",
            "faults/writer_process.py::WriterProcess",
            "harness/broken_compressor.py::run_broken",
            "mutation/run.py::run_suite",
        ),
        "the interpreter's beginning, and its end": (
            "api/test_forgotten.py::run",
            "cli/test_app.py::test_a_full_standard_output_is_one_line",
            "cli/test_app.py::test_closed_standard_streams_take_no_file_s_descriptor",
            "ingest/test_threads.py::run",
        ),
        "its memory is judged, and a fork has that of its parent": (
            "acquire/test_frame_table_writer.py::test_memory_and_metadata_do_not_grow_with_the_rows",
            "acquire/test_open_images.py::test_short_acquisitions_one_after_the_other_leave_nothing_behind",
            "daemon/test_allocation_reserve.py::test_a_message_camera_finds_memory_ready_and_leaves_none_behind",
            "daemon/test_memory_plan.py::test_a_message_of_parts_without_end_or_content_costs_its_sender_the_connection",
            "daemon/test_memory_plan.py::test_an_acquisition_of_many_images_takes_what_is_planned",
            "daemon/test_memory_plan.py::test_clients_that_come_and_go_leave_the_daemon_as_it_was",
            "read/test_missing_frames.py::test_memory_is_bounded",
            "soak/cameras.py::started",
            "disk/test_allocation_reserve.py::laps",
            "disk/test_allocation_reserve.py::test_one_acquisition_after_another_makes_the_heap_no_larger",
            "disk/test_allocation_reserve.py::test_what_a_process_has_can_be_told_when_it_may_open_no_further_file",
        ),
        "workers are spawned, as those of a shell's command are": (
            "harness/documents.py::run_in_shell",
            "read/test_zarr_store.py::test_an_array_can_be_sent_to_another_process",
            "repack/gappy_store.py::COMMAND",
            "repack/test_executors.py::Cluster",
            "soak/judge.py::Judge",
        ),
        "campaigns, and programs of tools": (
            "bench/test_bench.py::test_help_lists_the_contenders",
            "compaction/__main__.py::main",
            "fuzz/campaign.py::tally_of",
            "power/__main__.py::main",
            "power/test_power_cuts.py::prove",
            "soak/daemon.py::SoakDaemon",
            "soak/test_soak.py::soaking",
            "tools/test_demo.py::test_help_names_the_options",
            "tools/test_evidence.py::report_of",
            "tools/test_left_out.py::test_what_was_left_out_is_the_last_that_is_said",
        ),
        "nothing of ours is imported, or what is imported at once": (
            "bench/test_record.py::test_a_busy_machine_is_seen",
            "repack/test_child.py::said_by",
            "daemon/test_closed_folders.py::found_unprivileged",
            "daemon/test_control.py::test_connections_of_another_process_that_ask_nothing_cost_nobody_its_place",
            "daemon/test_places.py::test_a_root_of_somebody_else_is_refused_with_both_users",
            "layers/test_layers.py::test_rooms_import_only_downward",
            "repack/object_store.py::WEED",
            "repack/test_starvation.py::test_all_threads_of_this_process_and_of_its_children_are_counted",
            "repack/test_starvation.py::test_what_shows_progress_does_not_starve_with_the_job",
            "repack/test_throttle.py::priority",
            "soak/test_balance.py::test_a_ledger_outlives_whoever_is_killed",
            "soak/test_watch.py::test_a_new_process_of_the_same_name_is_another_life",
            "disk/test_files.py::stopped",
            "disk/test_lock.py::holder",
            "tools/test_document_oracle.py::test_one_that_a_child_encodes_is_too",
            "tools/test_run_folder.py::run",
            "tools/test_setup_venv.py::test_two_set_ups_take_turns",
            "harness/cached_environment.py::cached_python",
            "harness/source_release.py::source_release",
        ),
    }
)


def starts_anew(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(ast.Name("sys"), "executable") | ast.Name("CLI"):
            return True
        case ast.ImportFrom("sys"):
            return "executable" in {name.name for name in node.names}
        case ast.Call(ast.Name("DaemonProcess")):
            return any(word.arg in ("fresh", "output") for word in node.keywords)
        case ast.Call(ast.Attribute(_, "get_context") | ast.Name("get_context"), [ast.Constant(how)]):
            return bool(how != "fork")
    return False


def places(text: str) -> set[str]:
    """Returns the names of the functions, classes and constants of a module that start one anew."""
    if not MAY_START.search(text):
        return set()
    found = set()
    for statement in ast.parse(text).body:
        if any(map(starts_anew, ast.walk(statement))):
            targets = getattr(statement, "targets", None) or [ast.Name("a statement")]
            found.add(getattr(statement, "name", ast.unparse(targets[0])))
    return found


def test_every_fresh_start_is_argued() -> None:
    found = {
        f"{path.relative_to(TESTS).as_posix()}::{name}"
        for path in TESTS.rglob("*.py")
        for name in places(path.read_text(encoding="utf-8"))
    }
    unknown, gone = sorted(found - ALLOWED.keys()), sorted(ALLOWED.keys() - found)
    assert unknown == [], "fork it (harness/python.py), or say here what a fresh start is for"
    assert gone == [], "arguments for starts that are gone"


@pytest.mark.parametrize(
    "start",
    [
        "def place(): subprocess.run([sys.executable, '-c', code])",
        "class place:\n    async def start(self): Popen(f'{sys.executable} -m shardwright.cli')",
        "place = sys.executable",
        "def place(): return [*CLI, 'serve']",
        "def place():\n    with DaemonProcess(config, fresh=True) as daemon: pass",
        "def place(): return DaemonProcess(config, output=(events, errors))",
        "def place(): multiprocessing.get_context('spawn').Process(target=work).start()",
        "def place(): from sys import executable",
    ],
)
def test_the_search_finds_what_it_is_for(start: str) -> None:
    assert places(f"import sys\n\n{start}\n\ndef other(): DaemonProcess(config)") == {"place"}
