"""What makes a figure doubtful stands next to it: in table, grid, lead, on the terminal and in JSON."""

from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from bench.report import report, terminal
from bench.report.analysis.doubts import DOUBTS
from bench.report.exports import document
from bench.report.reading.load import load
from bench.results.records import TrialResult
from bench.results.run_json import planned
from tests.report.builders import RunBuilder, capped, timed
from tests.report.fleet import edit_run


def partial(run: RunBuilder) -> RunBuilder:
    run.speed().train("fp32", [90.0, 90.1]).train("amp-bf16", [90.0, 90.1])
    missing = planned(run.trial("train", ["amp-bf16"], 128, seed=2))
    edit_run(run.folder, lambda info: info.update(planned=[missing], finished=None))
    return run


def crowded(run: RunBuilder) -> RunBuilder:
    for replicate, load_pct in enumerate((2.0, 35.0, 3.0)):
        speeds = {"fp32": timed(10.0, 128), "amp-bf16": timed(5.0, 128, speedup=2.0, foreign_load_pct=load_pct)}
        rows = [TrialResult(precision=name, status="ok", speed=speed) for name, speed in speeds.items()]
        run.add(run.trial("speed", [*speeds], 128, replicate=replicate), *rows)
    return run


CASES: dict[str, Callable[[RunBuilder], RunBuilder]] = {
    "partial": partial,
    "crowded": crowded,
    "one process": lambda run: run.speed(speedups=[2.0]),
    "one seed": lambda run: run.speed().train("fp32", [90.0]).train("amp-bf16", [90.1]),
    "unconverged": lambda run: run.speed(status="unconverged"),
    "shared clock": lambda run: capped(run, 2.0, None, "not settled"),
    "lost trials": lambda run: run.speed().result("speed", "amp-bf16", replicate=3, status="timeout"),
}


def doubtful(folder: Path, name: str) -> RunBuilder:
    return CASES[name](RunBuilder(folder / "run", target_ci=0.001 if name == "unconverged" else None))


def test_every_doubt_has_a_case() -> None:
    assert CASES.keys() == DOUBTS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_doubt_is_in_json(tmp_path: Path, name: str) -> None:
    run = doubtful(tmp_path, name)
    exported = document.report(load([run.folder]))
    assert exported["answers"][0]["doubts"] == [name]
    assert name in [row["doubts"] for row in exported["results"]]


@pytest.mark.parametrize(
    "name", ["partial", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "partial")]
)
def test_a_doubt_is_marked_at_its_row_explained_below_it_and_said_in_the_lead(tmp_path: Path, name: str) -> None:
    doubt, run = DOUBTS[name], doubtful(tmp_path, name)
    contents = report([run.folder], tmp_path / "out", figures="none")
    head, page = ((tmp_path / "out" / file).read_text() for file in ("report.md", "report.html"))
    advised = next(line for line in head.splitlines() if "| **amp-bf16" in line)
    legend = f"{doubt.mark} {doubt.about}."
    assert doubt.mark in advised
    assert f"\n{legend}\n" in head
    assert doubt.about in head.partition("\n|")[0]
    assert f'</span> <span class="soft">{doubt.mark}</span>' in page
    assert legend in unescape(page)
    shown = terminal(contents, tmp_path)
    assert f"amp-bf16 {doubt.mark}" in shown
    assert legend in shown


def test_a_sound_run_has_no_doubt_and_a_partial_ones_advice_says_so_far(tmp_path: Path) -> None:
    sound = RunBuilder(tmp_path / "sound").speed()
    for run, so_far in ((sound, False), (partial(RunBuilder(tmp_path / "run")), True)):
        report([run.folder], tmp_path / "out", figures="none")
        head, details = ((tmp_path / "out" / name).read_text() for name in ("report.md", "details.md"))
        assert ("So far, amp-bf16 is " in head, "accuracy not shown so far**" in details) == (so_far, so_far)
        assert ("What to doubt" in head) == so_far


@pytest.mark.parametrize(
    ("cell", "batch", "is_partial"),
    [("mlp-0-b256", 256, True), ("mlp-1-b128", 128, False), ("gpt-0-b128", 128, False), ("", 128, True)],
)
def test_a_run_is_partial_where_a_trial_of_the_same_recipe_and_device_is_missing(
    tmp_path, cell, batch, is_partial
) -> None:
    run = RunBuilder(tmp_path / "run").speed()
    missing = [planned(run.trial("speed", ["fp32"], batch)) | {"cell": cell}] if cell else []  # without a plan, all
    edit_run(run.folder, lambda info: info.update(planned=missing, finished=None))
    assert (run.row()["doubts"] == "partial") == is_partial
