"""The ladder's verdict: which rung is advised, above what floor, and with which marks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.report.analysis.ablation import Climbed, climbed
from bench.report.reading.load import load
from bench.report.tables.ablation import sentence, table_of
from bench.results.records import Block, Device, MemoryPeak, Status, TrialResult
from bench.results.store import Store
from tests.report.builders import GPU, MIB, RunBuilder, timed
from tests.report.tables.test_ablation import apart, climb

AMP, ZEROED_AMP = "amp-bf16", "amp-bf16+set-to-none"


def climbing(
    builder: RunBuilder,
    speeds: dict[str, list[list[float]]],
    *,
    status: Status = "ok",
    mib: tuple[float | None, ...] = (),
) -> Climbed:
    """A ladder whose rungs are timed together: how fast each is, process by process and quad by quad; fp32 is 1."""
    for name, size in zip(speeds, mib, strict=False):
        if size is None:
            continue
        peak = MemoryPeak(
            **{f"peak_{'resident' if builder.device.kind == 'cpu' else 'allocated'}_bytes": int(size * MIB)}
        )
        builder.add(builder.trial("ladder_memory", [name], 64), TrialResult(precision=name, status="ok", memory=peak))
    for replicate in range(len(speeds["fp32"])):
        trial = builder.trial("ladder", list(speeds), 64, replicate=replicate)
        blocks = [
            Block(trial=trial.id, precision=name, round=quad, position=0, steps=1, time_ms=8 / speed, start_s=0.0)
            for name, processes in speeds.items()
            for quad, speed in enumerate(processes[replicate])
        ]
        with Store(builder.folder) as store:
            store.add_blocks(blocks)
        results = [
            TrialResult(
                precision=name,
                status=status if replicate == 0 else "ok",
                speed=timed(8 / float(np.median(processes[replicate])), 64),
                ablation=climb(rung),
            )
            for rung, (name, processes) in enumerate(speeds.items())
        ]
        builder.add(trial, *results)
    (ladder,) = climbed(load([builder.folder]))
    return ladder


def scattered(center: float, *noise: float) -> list[list[float]]:
    """Three processes of five quads, all of a process off by the same."""
    return [[center * (1 + off)] * 5 for off in noise or (0.0, 0.0, 0.0)]


def test_a_rung_that_is_not_shown_to_gain_on_a_lower_one_is_not_climbed_for(tmp_path: Path) -> None:
    speeds = {"fp32": scattered(1), AMP: scattered(2), ZEROED_AMP: scattered(2.1, -0.1, 0.0, 0.1)}
    said = sentence(climbing(RunBuilder(tmp_path / "run"), speeds))
    assert said.advice == "climb to amp-bf16"
    assert "2.000 [2.000, 2.000]× as fast as fp32 (FASTER)" in said.evidence
    assert "; the fastest, + set-to-none, is not shown to beat it (1.046 [0.8" in said.evidence


def test_a_higher_rung_is_advised_where_their_own_interval_shows_it_though_those_over_fp32_overlap(
    tmp_path: Path,
) -> None:
    noise = (-0.1, 0.0, 0.1)
    speeds = {"fp32": scattered(1), AMP: scattered(2, *noise), ZEROED_AMP: scattered(2.2, *noise)}
    ladder = climbing(RunBuilder(tmp_path / "run"), speeds)
    lower, higher = ladder.rows["over_first"].iloc[1:]
    assert lower.high > higher.center
    assert sentence(ladder).advice == "climb to + set-to-none"
    assert "the fastest," not in sentence(ladder).evidence


def test_a_rung_below_one_that_brings_nothing_is_beaten_by_the_one_above_both(tmp_path: Path) -> None:
    speeds = {"fp32": scattered(1), AMP: scattered(2), ZEROED_AMP: scattered(2.0, -0.01, 0.0, 0.01)}
    speeds |= {f"{ZEROED_AMP}+compile": scattered(3), f"{ZEROED_AMP}+compile+checkpointing": scattered(2.5)}
    assert sentence(climbing(RunBuilder(tmp_path / "run"), speeds)).advice == "climb to + compile"


def test_the_sentence_says_where_it_rests_on_one_process_or_did_not_converge(tmp_path: Path) -> None:
    one = {"fp32": [[1.0] * 5], AMP: [[1.2, 1.3, 1.25, 1.24, 1.26]]}
    said = sentence(climbing(RunBuilder(tmp_path / "one"), one, status="unconverged"))
    assert said.advice == "climb to amp-bf16"
    assert "× as fast as fp32 (FASTER, one process, unconverged)" in said.evidence
    assert said.evidence.endswith("× as fast as the one before (FASTER, one process, unconverged)")
    three = climbing(RunBuilder(tmp_path / "three"), {"fp32": scattered(1), AMP: scattered(2)}, status="unconverged")
    assert "× as fast as fp32 (FASTER, unconverged)" in sentence(three).evidence  # one of the three is
    assert list(three.rows["status"]) == ["unconverged"] * 2
    steps = {"fp32": [8.0, 8.1], AMP: [4.0, 4.1]}
    (alone,) = climbed(load([apart(RunBuilder(tmp_path / "apart"), steps).folder]))
    assert "× as fast as fp32 (FASTER, 2 processes apart)" in sentence(alone).evidence
    wide = climbing(RunBuilder(tmp_path / "wide"), {"fp32": [[1.0] * 5], AMP: [[0.8, 1.3, 1.25, 0.7, 1.1]]})
    assert sentence(wide).advice == "no verdict"
    assert "× as fast as fp32 (INCONCLUSIVE, one process)" in sentence(wide).evidence


@pytest.mark.parametrize(
    ("batch", "least", "gain", "said"),
    [
        (64, 0.98, 1.04, ("no verdict", "floor, here 5.1 %")),
        (64, 0.9999, 1.005, ("climb to amp-bf16", "floor, here 0.0 %")),
        (128, 0.98, 1.04, ("climb to amp-bf16", "floor, assumed to be 1.0 %.")),
        (128, 0.9999, 1.005, ("stay with fp32", "floor, assumed to be 1.0 %.")),
    ],
)
def test_the_floor_is_what_fp32_gave_against_itself_at_the_ladders_batch_size(
    tmp_path: Path, batch: int, least: float, gain: float, said: tuple[str, str]
) -> None:
    builder = RunBuilder(tmp_path / "run")
    for replicate, ratio in enumerate((least, 1.0, 1 / least)):
        trial = builder.trial("floor", ["fp32"], batch, replicate=replicate)
        trial = replace(trial, cell=replace(trial.cell, techniques=("channels-last",)))  # which are rungs of a ladder
        speed = timed(8.0, batch, speedup=ratio, speedup_low=ratio - 0.01, speedup_high=ratio + 0.01)
        builder.add(trial, TrialResult(precision="fp32", status="ok", speed=speed))
    ladder = climbing(builder, {"fp32": scattered(1), AMP: scattered(gain)})
    assert sentence(ladder).advice == said[0]
    assert said[1] in table_of(ladder).about


@pytest.mark.parametrize(
    ("kind", "mib", "told"),
    [
        ("cpu", (480.0, 476.0), "(FASTER), peak memory not told apart; "),
        ("cpu", (480.0, 432.0), "(FASTER) at −10 % peak memory; "),
        ("cuda", (480.0, 475.2), "(FASTER) at −1 % peak memory; "),
        ("cpu", (480.0, None), "(FASTER); "),
        ("cpu", (None, 432.0), "(FASTER); "),
    ],
)
def test_memory_that_two_processes_differ_by_anyway_is_not_told_apart_on_a_cpu(
    tmp_path: Path, kind: str, mib: tuple[float | None, ...], told: str
) -> None:
    device = GPU if kind == "cuda" else Device(placement="cpu", kind="cpu", name="Test CPU", architecture="x")
    builder = RunBuilder(tmp_path / "run", device=device)
    ladder = climbing(builder, {"fp32": scattered(1), AMP: scattered(2)}, mib=mib)
    assert f"as fast as fp32 {told}" in sentence(ladder).evidence
