"""Bad input in small numbers: no traceback, and documented exit codes."""

import os

import pytest

from perf import bad_input


@pytest.mark.slow
def test_odd_command_lines_end_with_a_documented_code_and_no_traceback(tmp_path):
    tally = bad_input.lines(400, 1, tmp_path)
    assert tally.codes.total() == 400
    assert tally.failures == []


@pytest.mark.parametrize("count", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_damaged_folders_end_with_a_documented_code_and_no_traceback(tmp_path, count):
    run = bad_input.measured_run(tmp_path / "run", quick=count < 10)
    tally = bad_input.folders(count, 1, [run], tmp_path)
    assert tally.failures == []


def test_an_undamaged_run_is_reported_compared_and_resumed(tmp_path):
    run = bad_input.measured_run(tmp_path / "run", quick=True)
    again = bad_input.measured_run(tmp_path / "again", quick=True)
    for argv in (
        ["report", "--json", run],
        ["compare", run, again],
        ["--resume", run, "--dry-run"],
    ):
        code, printed = bad_input.answer([str(word) for word in argv])
        assert code == 0, printed


@pytest.mark.slow
def test_a_run_whose_folder_has_a_name_of_any_bytes_is_measured_reported_and_resumed(tmp_path):
    run = bad_input.measured_run(tmp_path / os.fsdecode(b"\xff\x1b[1m"), quick=True)
    out = tmp_path / os.fsdecode(b"\xfe")
    page = ["report", "--figures", "none", "--out", str(out), str(run)]
    for argv in (["report", "--json", str(run)], page, ["--resume", str(run), "--dry-run"]):
        code, printed = bad_input.answer(argv)
        assert code == 0, printed
        assert "\x1b" not in printed
    assert (out / "report.html").is_file()
