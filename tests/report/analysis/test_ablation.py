"""What an ablation's figures rest on: blocks that count, and the limit of most processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.records import Block, TrialResult
from tests.report.ablations import AMP, ablation_of, ablation_result, together
from tests.report.builders import RunBuilder, timed

STEPS = ("fp32", AMP)


def test_blocks_that_were_disturbed_count_for_nothing(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    together(run, {"fp32": [[1.0] * 6], AMP: [[2.0] * 6]})
    trial = run.trial("ladder", STEPS, 64, replicate=0).id
    disturbed = {"position": 0, "steps": 1, "start_s": 0.0, "discarded": "thermal"}
    times_ms = {"fp32": 9.0, AMP: 1.0}
    for number in range(6, 12):
        for name, time_ms in times_ms.items():
            run.append(Block(trial=trial, precision=name, round=number, time_ms=time_ms, **disturbed))
    over = ablation_of(run).rows.set_index("added").loc[AMP, "over_first"]
    assert (over.center, over.n) == (pytest.approx(2.0), 6)


@pytest.mark.parametrize(
    ("waits", "limit"),
    [((True, True, False), "loader"), ((True, False), "loader"), ((True, False, False), "arithmetic")],
)
def test_the_loader_limits_a_step_that_waits_for_it_in_half_of_its_processes(tmp_path: Path, waits, limit) -> None:
    run = RunBuilder(tmp_path / "run")
    for replicate, limited in enumerate(waits):
        results = [
            TrialResult(
                precision=name,
                status="ok",
                speed=timed(8.0 / (step + 1), 64, host_ratio=0.2),
                ablation=ablation_result(step, limited=limited),
            )
            for step, name in enumerate(STEPS)
        ]
        run.add(run.trial("ladder", STEPS, 64, replicate=replicate), *results)
    assert ablation_of(run).rows.set_index("added").loc[AMP, "limit"] == limit
