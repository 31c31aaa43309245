"""What makes a figure doubtful stands next to it: in table, grid, on the terminal and in JSON."""

from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from bench.report import document, report, terminal
from bench.report.analysis.comparability import cautions
from bench.report.analysis.doubts import DOUBTS
from bench.report.reading.load import load
from bench.results.records import Operations, TrialResult
from bench.spec.data_source import DataSource
from tests.report.builders import IEEE, RunBuilder, capped, text_of, timed
from tests.report.fleet import edit_rows, edit_run


def partial(run: RunBuilder) -> RunBuilder:
    run.speed().train("fp32", [90.0, 90.1]).train("amp-bf16", [90.0, 90.1])
    edit_run(run.folder, lambda info: info.update(finished=None))
    return run


def strayed(
    run: RunBuilder,
    computed: str = "bfloat16:90% float32:10%",
    arm: str = "bfloat16:100%",
    reference: str = "",
) -> RunBuilder:
    """Three processes in which fp32, or the reference of a script, multiplied in other types.

    They are those of a known module.
    """
    names = (reference or "fp32", "amp-bf16")
    if reference:
        script = {"command": ["train.py"], "arms": [[name, ""] for name in names]}
        edit_run(run.folder, lambda info: info["request"].update(script=script))
    speeds = (timed(10.0, 128), timed(5.0, 128, speedup=2.0))
    for replicate in range(3):
        trial = run.trial("speed", names, 128, replicate=replicate)
        if reference:
            data = DataSource(kind="script")
            trial = replace(trial, cell=replace(trial.cell, data=data, reference=reference))
        rows = []
        for name, types, speed in zip(names, (computed, arm), speeds, strict=True):
            operations = Operations(compute_dtypes=types, other_modules="middle")
            parts = {"switches": IEEE, "operations": operations, "row": speed}
            rows.append(TrialResult(arm=name, status="ok", **parts))
        run.add(trial, *rows)
    return run


def edited(run, **cells: str) -> RunBuilder:
    """Three processes, with other cells in the rows of the second.

    Where a process was disturbed, they are in the rows of all.
    """

    def edit(row: dict[str, str]) -> None:
        if row["replicate"] == "1" or "disturbance" in cells:
            row.update(cells)

    edit_rows(run.speed().folder, edit)
    return run


CASES: dict[str, Callable[[RunBuilder], RunBuilder]] = {
    "partial": partial,
    "other types": strayed,
    "crowded": lambda run: edited(run, foreign_load_pct="35"),
    "disturbed": lambda run: edited(run, disturbance="thermal slowdown for 2 s"),
    "one process": lambda run: run.speed(speedups=[2.0]),
    "one seed": lambda run: run.speed().train("fp32", [90.0]).train("amp-bf16", [90.1]),
    "unconverged": lambda run: run.speed(status="unconverged"),
    "shared clock": lambda run: capped(run, 2.0),
    "one of many": lambda run: run.speed(speedups=[1.15, 1.2, 1.25]).speed("tf32", [0.9, 1.0, 1.1]),
    "alone": lambda run: capped(run, 2.0).drew(1000, "fp32").drew(1800),
    "lost trials": lambda run: run.speed().result(
        "speed", "amp-bf16", replicate=3, status="timeout"
    ),
}


def doubtful(folder: Path, name: str) -> RunBuilder:
    target_ci = 0.001 if name == "unconverged" else None
    return CASES[name](RunBuilder(folder / "run", target_ci=target_ci))


def written(folder, *runs):
    """The report of some runs, and the texts of report.md and report.html."""
    contents = report([run.folder for run in runs], folder, figures="none")
    head, page = (unescape((folder / name).read_text()) for name in ("report.md", "report.html"))
    return contents, head, page


def test_every_doubt_has_a_case():
    assert CASES.keys() == DOUBTS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_doubt_is_in_json(tmp_path, name):
    run = doubtful(tmp_path, name)
    exported = document.report(load([run.folder]))
    assert exported["answers"][0]["doubts"] == [name]
    assert name in [row["doubts"] for row in exported["results"]]


@pytest.mark.parametrize(
    "name", ["partial", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "partial")]
)
def test_a_doubt_is_marked_at_its_row_and_explained_below_it(tmp_path, name):
    doubt, run = DOUBTS[name], doubtful(tmp_path, name)
    contents, head, page = written(tmp_path, run)
    # In bold where it is advised.
    arm = next(line for line in head.splitlines() if "| amp-bf16" in line.replace("*", ""))
    advised = "fp32" if name == "one of many" else "amp-bf16"
    legend = f"{doubt.mark} {doubt.about}."
    assert doubt.mark in arm
    assert f"\n{legend}\n" in head
    assert f'</span> <span class="soft">{doubt.mark}</span>' in page
    assert legend in page
    shown = terminal(contents, tmp_path)
    assert f"{advised} {doubt.mark}" in shown
    assert legend in shown


def test_a_sound_run_has_no_doubt_and_a_partial_ones_advice_says_so_far(run, tmp_path):
    sound = RunBuilder(tmp_path / "sound").speed()
    for each, so_far in ((sound, False), (partial(run), True)):
        _, head, page = written(tmp_path, each)
        assert ("So far, amp-bf16 is " in head) is so_far
        assert ("accuracy not shown so far</strong>" in page) is so_far


def test_a_run_that_did_not_end_is_told_with_the_command_to_go_on(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder is named from here
    (text,) = cautions(load([partial(run).folder]))
    unfinished = "Run run is unfinished: it was stopped, or is still running."
    assert text == f"{unfinished} Go on with --resume run."
    undecided = ["speed of mlp on cpu", "train of mlp on cpu"]
    edit_run(run.folder, lambda info: info.update(undecided=undecided))
    (text,) = cautions(load([run.folder]))
    assert "--within; undecided: speed of mlp on cpu, train of mlp on cpu. Go on" in text


FIRST = "fp32 computed 90 % of its products in bfloat16 (middle), so it is no fp32."


def test_that_fp32_was_none_is_the_first_sentence_everywhere_and_at_every_verdict_over_it(
    run, tmp_path
):
    strayed(run)
    contents, head, page = written(tmp_path, run)
    details = text_of(tmp_path / "report.html")
    assert head.splitlines()[2].startswith(f"**{FIRST}**")
    assert "| fp32 ≠ |" in head
    assert f'aria-label="In short">\n<p><strong>{FIRST}</strong>' in page
    assert terminal(contents, tmp_path).startswith(FIRST)
    assert "| FASTER ≠ |" in details
    assert "so this is no comparison with FP32" in details
    fp32, arm = document.report(load([run.folder]))["results"]
    assert fp32["other_types"] == "computed 90 % of its products in bfloat16 (middle)"
    assert arm["other_types"] is None


@pytest.mark.parametrize(
    ("computed", "arm"),
    [
        ("float32:100%", "bfloat16:100%"),
        ("float32:100%", "bfloat16:80% float32:20%"),
        ("float64:50% complex128:50%", "bfloat16:100%"),
    ],
    ids=["fp32", "a mixed precision with a part in fp32", "float64"],
)
def test_products_in_types_that_a_precision_allows_are_no_doubt(run, tmp_path, computed, arm):
    strayed(run, computed, arm)
    contents, head, _ = written(tmp_path, run)
    assert "≠" not in head
    assert terminal(contents, tmp_path).startswith("mlp")
    assert {row["other_types"] for row in document.report(load([run.folder]))["results"]} == {None}


SCRIPT = ("tf32:100%", "bfloat16:90% float32:10%")
NO_FP32 = "fp32 computed 100 % of its products in tf32 (middle), so it is no fp32."
IN_FP16 = "amp-bf16 computed 75 % of its products in float16 (middle)."
LEFT = "amp-bf16 computed 97 % of its products in float32 (middle)."


@pytest.mark.parametrize(
    ("types", "first", "cells"),
    [
        (("float32:100%", "float16:75% bfloat16:25%"), IN_FP16, ["| fp32 |", "| **amp-bf16 ≠** |"]),
        (("float32:100%", "float32:97% bfloat16:3%"), LEFT, ["| fp32 |", "| **amp-bf16 ≠** |"]),
        ((*SCRIPT, "fp32"), NO_FP32, ["| fp32 ≠ |", "bf16 ≠"]),
        ((*SCRIPT, "plain"), NO_FP32, ["| fp32 ≠ |", "bf16 ≠"]),
    ],
    ids=["an arm", "an arm in fp32", "a script's fp32", "a script's reference of another name"],
)
def test_an_arm_in_another_type_than_its_name_is_told_and_marked(
    run, tmp_path, types, first, cells
):
    strayed(run, *types)
    contents, head, _ = written(tmp_path, run)
    assert head.splitlines()[2].startswith(f"**{first}**")
    assert terminal(contents, tmp_path).startswith(first)
    assert all(cell in head for cell in cells)


def test_of_two_models_only_the_one_whose_fp32_was_none_is_marked(run, tmp_path):
    sound = RunBuilder(tmp_path / "sound", suite="gpt").speed()
    _, head, _ = written(tmp_path, strayed(run), sound)
    assert head.splitlines()[2].startswith(f"**{FIRST}**")
    lines = [line for line in head.splitlines() if line.startswith(("| gpt", "| mlp"))]
    assert [line.count("≠") for line in lines] == [0, 1]
