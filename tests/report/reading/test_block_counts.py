"""Blocks that are not those that the speeds were made from are told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.reading.load import load
from bench.results.records import Block, TrialResult
from bench.results.store import Store
from tests.report import fleet
from tests.report.builders import RunBuilder, timed, write_report

STEPS_MS = {"fp32": 10.0, "amp-bf16": 5.0}
QUADS, VOID, STEPS = 6, 2, 3


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A speed trial with all its blocks, two of its eight quads disturbed."""
    builder = RunBuilder(tmp_path / "run")
    trial = builder.trial("speed", list(STEPS_MS), 64)
    blocks = [
        Block(
            trial=trial.id,
            precision=name,
            round=quad,
            position=position,
            steps=STEPS,
            time_ms=STEPS * STEPS_MS[name] * (1 + quad / 1000),
            start_s=float(quad),
            skipped_steps=0,
            discarded="throttled" if quad < VOID else "",
        )
        for quad in range(VOID + QUADS)
        for position, name in enumerate(["fp32", "amp-bf16", "amp-bf16", "fp32"])
    ]
    with Store(builder.folder) as store:
        store.add_blocks(blocks)
    results = [
        TrialResult(precision=name, status="ok", speed=timed(step_ms * 1.0045, 64, discarded_rounds=VOID, rounds=QUADS))
        for name, step_ms in STEPS_MS.items()
    ]
    return builder.add(trial, *results).folder


def remarks(folder: Path) -> tuple[str, ...]:
    return load([folder]).runs[0].remarks


def without(folder: Path, lines: slice) -> None:
    path = folder / "blocks.csv"
    kept = path.read_text().splitlines(keepends=True)
    del kept[lines]
    path.write_text("".join(kept))


def test_blocks_that_fit_are_not_remarked_on(run: Path) -> None:
    assert remarks(run) == ()


def test_a_lost_block_is_told_with_its_trial_and_no_other(run: Path, tmp_path: Path) -> None:
    without(run, slice(-2, -1))
    (said,) = remarks(run)
    assert "of mlp-0-b64-speed-r0 in amp-bf16 trials.csv tells of 12 blocks that count and 4 that do not" in said
    assert "blocks.csv has 11 and 4. Lines" in said
    page = write_report([run], tmp_path / "out", figures="none").read_text()
    assert f"Run run: {said}" in page.replace("\\", "")


def test_lost_quads_and_quads_that_count_no_more_are_told_of_all_arms(run: Path) -> None:
    fleet.edit_rows(run, lambda row: row["round"] == "5" and row.update(discarded="by hand"), "blocks.csv")
    assert (
        "12 blocks that count and 4 that do not, blocks.csv has 10 and 6, and 1 more row is like it" in remarks(run)[0]
    )
    without(run, slice(1, 9))
    assert (
        "12 blocks that count and 4 that do not, blocks.csv has 10 and 2, and 1 more row is like it" in remarks(run)[0]
    )


def test_a_file_without_a_block_is_told_and_a_missing_one_once(run: Path) -> None:
    without(run, slice(1, None))
    assert "blocks.csv has 0 and 0" in remarks(run)[0]
    (run / "blocks.csv").unlink()
    assert remarks(run) == ("blocks.csv is missing, so what is made from it is not in the report.",)


def test_other_times_are_told(run: Path) -> None:
    def triple(row: dict[str, str]) -> None:
        if row["precision"] == "amp-bf16":
            row["time_ms"] = repr(3 * float(row["time_ms"]))

    fleet.edit_rows(run, triple, "blocks.csv")
    (said,) = remarks(run)
    assert "in amp-bf16 trials.csv tells of a step of 5.022 ms, blocks.csv has a median of 15.07 ms." in said
