"""Bad input in small numbers: no traceback, and documented exit codes."""

import os

import pytest

from perf import bad_input


def answered(*words):
    """Return what a command prints that ends well."""
    code, printed = bad_input.answer([*map(str, words)])
    assert code == 0, printed
    return printed


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    return bad_input.measured_run(folder / "run", quick=True)


@pytest.mark.slow
def test_odd_command_lines_end_with_a_documented_code_and_no_traceback(tmp_path):
    tally = bad_input.lines(400, 1, tmp_path)
    assert tally.codes.total() == 400
    assert tally.failures == []


def test_damaged_folders_end_with_a_documented_code_and_no_traceback(quick_run, tmp_path):
    tally = bad_input.folders(4, 1, [quick_run], tmp_path)
    assert tally.failures == []


@pytest.mark.slow
def test_many_damaged_folders_of_all_phases_end_so(tmp_path):
    run = bad_input.measured_run(tmp_path / "run")
    tally = bad_input.folders(200, 1, [run], tmp_path)
    assert tally.failures == []


def test_an_undamaged_run_is_reported_compared_and_resumed(quick_run, tmp_path):
    again = bad_input.measured_run(tmp_path / "again", quick=True)
    answered("report", "--json", quick_run)
    answered("compare", quick_run, again)
    answered("--resume", quick_run, "--dry-run")


@pytest.mark.slow
def test_a_run_whose_folder_has_a_name_of_any_bytes_is_measured_reported_and_resumed(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff\x1b[1m")
    run = bad_input.measured_run(folder, quick=True)
    out = tmp_path / os.fsdecode(b"\xfe")
    commands = [
        ("report", "--json", run),
        ("report", "--figures", "none", "--out", out, run),
        ("--resume", run, "--dry-run"),
    ]
    for command in commands:
        assert "\x1b" not in answered(*command)
    assert (out / "report.html").is_file()
