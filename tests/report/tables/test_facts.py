"""Notes of circumstances say of each machine what was seen on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.report.reading.load import load
from bench.report.tables.facts import notes
from bench.results.records import TrialResult
from tests.report.builders import GPU, RunBuilder, timed, write_report


def test_each_machine_is_crowded_by_its_own_most(tmp_path: Path) -> None:
    for name, shares in (("a", [55.0, 80.0]), ("b", [20.0, 12.0])):
        builder = RunBuilder(tmp_path / name, device=replace(GPU, name=f"Card {name}"))
        for replicate, share in enumerate(shares):
            trial = builder.trial("speed", ["fp32"], 64, replicate=replicate)
            timing = timed(4.0, 64, foreign_load_pct=share)
            builder.add(trial, TrialResult(precision="fp32", status="ok", speed=timing))
    told = notes(load([tmp_path / "a", tmp_path / "b"]).trials)
    assert told is not None
    rows = [dict(zip(told.headers, row, strict=True)) for row in told.rows]
    assert [(row["trials"], row["detail"].split(" of ")[0]) for row in rows] == [
        ("2", "other programs took up to 80 %"),
        ("2", "other programs took up to 20 %"),
    ]


def test_where_nothing_was_odd_the_notes_say_no_more_than_is_so(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").memory("fp32", 100)  # which has no interval
    page = write_report([run.folder], tmp_path / "out", figures="none")
    said = "Every trial was measured, and within its process no interval is wider than was asked."
    for text in (page.read_text(), page.with_name("report.html").read_text()):
        assert said in text
        assert "every interval" not in text


def test_it_is_told_that_the_ratio_of_two_steps_is_not_the_speedup(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    text = write_report([run.folder], tmp_path / "out", figures="none").read_text()
    assert "so the ratio of two steps differs from it by chance" in text
