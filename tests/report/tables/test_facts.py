"""Notes of circumstances say of each machine what was seen on it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bench.report.reading.load import load
from bench.report.tables.facts import notes, warnings
from bench.results.records import TrialResult
from tests.report.builders import GPU, RunBuilder, timed, write_report
from tests.report.fleet import edit_run
from tests.report.tables.lines import lines


def test_each_machine_is_crowded_by_its_own_most(tmp_path: Path) -> None:
    for name, shares in (("a", [55.0, 80.0]), ("b", [20.0, 12.0])):
        builder = RunBuilder(tmp_path / name, device=replace(GPU, name=f"Card {name}"))
        for replicate, share in enumerate(shares):
            trial = builder.trial("speed", ["fp32"], 64, replicate=replicate)
            timing = timed(4.0, 64, foreign_load_pct=share)
            builder.add(trial, TrialResult(precision="fp32", status="ok", speed=timing))
    rows = lines(notes(load([tmp_path / "a", tmp_path / "b"]).trials))
    assert [(row["trials"], re.findall(r"\d+ %", row["detail"])) for row in rows] == [("2", ["80 %"]), ("2", ["20 %"])]


def test_a_run_without_notes_has_a_remark_in_their_place(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").memory("fp32", 100)
    page = write_report([run.folder], tmp_path / "out", figures="none").read_text()
    section = page.split("## Notes")[1].split("##")[0]
    assert "Every trial was measured" in section
    assert "|" not in section


def test_warnings_name_their_run_where_there_are_several(tmp_path: Path) -> None:
    for name in ("a", "b"):
        RunBuilder(tmp_path / name).memory("fp32", 100)
        edit_run(tmp_path / name, lambda run: run.update(warnings=["The GPU is shared."]))
    assert warnings(load([tmp_path / "a"]).runs) == ["The GPU is shared."]
    assert warnings(load([tmp_path / "a", tmp_path / "b"]).runs) == ["a: The GPU is shared.", "b: The GPU is shared."]
