"""The ladder's table: each rung against fp32 and against the one before, from blocks that are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.findings import Climb, MemoryPeak
from bench.records import Block, TrialResult
from bench.report import verdicts
from bench.report.ladder import climbed, sentence, table_of
from bench.report.load import load
from bench.report.page import write
from bench.store import Store
from tests.report.builders import RunBuilder, timed

STEPS_MS = {"fp32": 8.0, "amp-bf16": 4.0, "amp-bf16+set-to-none": 3.2}


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    builder = RunBuilder(tmp_path / "run", suite="vit_b_16")
    for name, mib in zip(STEPS_MS, (100, 60, 50), strict=True):
        trial = builder.trial("ladder_memory", [name], 64)
        builder.add(
            trial, TrialResult(precision=name, status="ok", memory=MemoryPeak(peak_allocated_bytes=mib * 2**20))
        )
    for replicate in range(3):
        trial = builder.trial("ladder", list(STEPS_MS), 64, replicate=replicate)
        results, blocks = [], []
        for rung, (name, step_ms) in enumerate(STEPS_MS.items()):
            climb = Climb(rung=rung, loader_ms=3.0, wait_pct=5.0, steps_per_epoch=500, loader_limited=rung == 2)
            speed = timed(step_ms, 64, speedup=8.0 / step_ms if rung else None)
            results.append(TrialResult(precision=name, status="ok", speed=speed, climb=climb))
            for quad in range(5):
                drift = 1 + 0.1 * quad  # of the machine, alike for all
                blocks.append(
                    Block(
                        trial=trial.id,
                        precision=name,
                        quad=quad,
                        position=rung,
                        steps=10,
                        time_ms=10 * step_ms * drift,
                        start_s=0.0,
                    )
                )
        with Store(builder.folder) as store:
            store.add_blocks(blocks)
        builder.add(trial, *results)
    missing = "amp-bf16+set-to-none+non-blocking"
    builder.add(
        builder.trial("ladder", [missing], 64), TrialResult(precision=missing, status="unsupported", detail="no GPU")
    )
    return builder


def test_rungs_stand_in_order_with_both_ratios_time_per_epoch_and_memory(run: RunBuilder) -> None:
    (ladder,) = climbed(load([run.folder]))
    made = table_of(ladder)
    columns = [dict(zip(made.headers, row, strict=True)) for row in made.rows]
    assert [row["rung"] for row in columns] == ["fp32", "amp-bf16", "+ set-to-none", "+ non-blocking"]
    assert [row["time/epoch (s)"] for row in columns] == ["4.000", "2.000", "1.600", "–"]
    assert [row["over fp32 [95 % interval]"] for row in columns[1:3]] == [
        "2.000 [2.000, 2.000]",
        "2.500 [2.500, 2.500]",
    ]
    assert columns[2]["over the rung before"] == "1.250 [1.250, 1.250]"
    assert [row["peak memory (MiB)"] for row in columns] == ["100.0", "60.00", "50.00", "–"]
    assert [row["limited by"] for row in columns] == ["step", "step", "loader", "–"]
    assert columns[3]["status"] == "unsupported: no GPU"


def test_the_verdict_says_how_far_it_pays_to_climb(run: RunBuilder) -> None:
    (ladder,) = climbed(load([run.folder]))
    said = sentence(ladder)
    assert said.advice == "climb to + set-to-none"
    assert said.evidence == (
        "2.500 [2.500, 2.500]× as fast as fp32 at −50 % peak memory; the rung that brings most is amp-bf16, "
        "2.000 [2.000, 2.000]× as fast as the one before; there the loader is the limit, not arithmetic"
    )
    assert verdicts([run.folder]) == [str(said)]


def test_where_no_rung_gains_the_advice_is_fp32(run: RunBuilder) -> None:
    blocks = run.folder / "blocks.csv"
    lines = blocks.read_text().splitlines()
    swapped = [line.replace(",fp32,", ",swap,").replace(",amp-bf16+set-to-none,", ",fp32,") for line in lines]
    blocks.write_text("\n".join(line.replace(",swap,", ",amp-bf16+set-to-none,") for line in swapped) + "\n")
    (ladder,) = climbed(load([run.folder]))
    assert sentence(ladder).advice == "stay with fp32"


def test_rungs_are_not_taken_for_precisions_and_the_page_has_the_stairs(run: RunBuilder, tmp_path: Path) -> None:
    runs = load([run.folder])
    assert runs.trials.empty
    assert runs.blocks.empty
    text = write(runs, tmp_path / "report").read_text()
    assert "climb to + set-to-none" in text
    assert (tmp_path / "report" / "vit-b-16-nvidia-test-1-b64-ladder.png").stat().st_size > 10_000
