"""What a ladder's figures rest on: blocks that count, and the limit of most processes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bench.report.analysis.ablation import ablations
from bench.report.reading.load import load
from bench.results.records import AblationResult, Block, TrialResult
from bench.results.store import Store
from tests.report.builders import RunBuilder, timed

RUNGS = ("fp32", "amp-bf16")


def timed_together(builder: RunBuilder, *, waits: tuple[bool, ...] = (False,)) -> RunBuilder:
    """A process for each of ``waits``, which says whether amp-bf16 waits for the loader there."""
    for replicate, limited in enumerate(waits):
        results = [
            TrialResult(
                precision=name,
                status="ok",
                speed=timed(8.0 / (rung + 1), 64, host_ratio=0.2),
                ablation=AblationResult(
                    ablation_step=rung, loader_ms=1.0, wait_pct=5.0, steps_per_epoch=9, loader_limited=limited
                ),
            )
            for rung, name in enumerate(RUNGS)
        ]
        builder.add(builder.trial("ladder", RUNGS, 64, replicate=replicate), *results)
    return builder


def with_quads(builder: RunBuilder, ratios: list[float], *, first: int = 0, invalid: str = "") -> RunBuilder:
    """Quads of the first process in which amp-bf16 is so many times as fast as fp32."""
    trial = builder.trial("ladder", RUNGS, 64, replicate=0)
    blocks = [
        Block(
            trial=trial.id,
            precision=name,
            round=quad,
            position=position,
            steps=10,
            time_ms=80.0 / (ratio if name != "fp32" else 1.0),
            start_s=0.0,
            discarded=invalid,
        )
        for quad, ratio in enumerate(ratios, start=first)
        for position, name in enumerate(RUNGS)
    ]
    with Store(builder.folder) as store:
        store.add(blocks)
    return builder


def second(builder: RunBuilder) -> pd.Series:
    """The row of amp-bf16."""
    (ladder,) = ablations(load([builder.folder]))
    return ladder.rows.set_index("added").loc["amp-bf16"]


def test_blocks_that_were_disturbed_count_for_nothing(tmp_path: Path) -> None:
    run = timed_together(RunBuilder(tmp_path / "run"))
    with_quads(run, [2.0] * 6)
    with_quads(run, [9.0] * 6, first=6, invalid="thermal")
    over = second(run)["over_first"]
    assert (over.center, over.n) == (pytest.approx(2.0), 6)


@pytest.mark.parametrize(
    ("waits", "limit"),
    [
        ((True, True, False), "loader"),
        ((True, False), "loader"),
        ((True, False, False), "arithmetic"),
    ],
)
def test_the_loader_limits_a_rung_that_waits_for_it_in_half_of_its_processes(tmp_path: Path, waits, limit) -> None:
    assert second(timed_together(RunBuilder(tmp_path / "run"), waits=waits))["limit"] == limit
