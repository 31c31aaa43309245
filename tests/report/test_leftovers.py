"""Reports that are written again, and reports of other runs under one name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.report.page import FILES
from bench.run.session import report, report_folder
from tests.report import fleet
from tests.report.builders import RunBuilder, write_report

REPORT = {"report.md", "report.html", FILES}


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two runs of one recipe on two devices, of which a report has a matrix."""
    one = RunBuilder(tmp_path / "one").speed().speed(batch=256).folder
    return [one, fleet.copy(one, tmp_path / "two", device="Card", architecture="Volta", host="there")]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_report_written_again_leaves_nothing_of_the_one_before(pair: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report(pair, out)
    assert {"matrix-mlp.csv", "matrix-mlp.svg", "matrix-mlp.png", "mlp-card-run-two-speed.png"} <= files(out)
    write_report(pair[:1], tmp_path / "fresh")
    write_report(pair[:1], out)
    assert files(out) == files(tmp_path / "fresh")
    write_report(pair[:1], out, figures="none")
    assert files(out) == REPORT


def test_what_no_report_wrote_stays(pair: list[Path], tmp_path: Path) -> None:
    out, beside = tmp_path / "out", tmp_path / "kept.svg"
    write_report(pair, out)
    mine = ["mine.svg", "mine.csv", "matrix-mine.csv", "blocks.csv", "notes.txt"]
    for path in (*(out / name for name in mine), beside):
        path.write_text("mine")
    with (out / "report.md").open("a") as page:
        page.write("\n![up](../kept.svg)\nSee blocks.csv, mine.csv and mine.svg.\n")
    write_report(pair[:1], out, figures="none")
    assert files(out) == REPORT | set(mine)
    assert beside.exists()


def test_a_report_into_a_runs_own_folder_leaves_the_run_whole(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed().folder
    there = files(run)
    write_report([run], run)
    write_report([run], run, figures="none")
    assert files(run) == there | REPORT


def begun(folder: Path, when: str | None, speedup: float = 2.0) -> Path:
    run = RunBuilder(folder).speed(speedups=[speedup]).folder
    fleet.edit_run(run, lambda info: info.update(started=when))
    return run


@pytest.mark.parametrize("starts", [("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00"), (None, None)])
def test_runs_of_one_name_have_reports_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (begun(tmp_path / at / "run", when) for at, when in zip("ab", starts, strict=True))
    names = []
    for run in (one, other, one, other):
        names.append(report_folder([run]).as_posix())
        report([run], report_folder([run]), figures="none")
    assert names == ["reports/run", "reports/run-2", "reports/run", "reports/run-2"]


def test_a_copy_of_a_run_and_a_page_without_a_mark_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = begun(tmp_path / "a" / "run", "2026-01-01T00:00:00+00:00")
    shutil.copytree(run, tmp_path / "b" / "run")
    write_report([run], report_folder([run]), figures="none")
    assert report_folder([tmp_path / "b" / "run"]) == Path("reports/run")
    assert report_folder([begun(tmp_path / "c" / "run", "2026-02-01T00:00:00+00:00")]) == Path("reports/run-2")
    Path("reports/run/report.html").write_text("<!doctype html>")
    assert report_folder([tmp_path / "c" / "run"]) == Path("reports/run")
