"""The ladder's table: each rung against fp32 and against the one before, from blocks that are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report import report
from bench.report.analysis.ablation import climbed
from bench.report.page import publish
from bench.report.reading.load import load
from bench.report.tables.ablation import sentence, short, table_of
from bench.report.tables.facts import notes
from bench.results.records import AblationResult, Block, MemoryPeak, TrialResult
from bench.results.store import Store
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
            climb = AblationResult(
                ablation_step=rung, loader_ms=3.0, wait_pct=5.0, steps_per_epoch=500, loader_limited=rung == 2
            )
            speed = timed(step_ms, 64, speedup=8.0 / step_ms if rung else None, host_ratio=(0.9, 0.2, 0.9)[rung])
            results.append(TrialResult(precision=name, status="ok", speed=speed, ablation=climb))
            for quad in range(5):
                drift = 1 + 0.1 * quad  # of the machine, alike for all
                blocks.append(
                    Block(
                        trial=trial.id,
                        precision=name,
                        round=quad,
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
    assert [row["ablation step"] for row in columns] == ["fp32", "amp-bf16", "+ set-to-none", "+ non-blocking"]
    assert [row["time/epoch (s)"] for row in columns] == ["4.000", "2.000", "1.600", "–"]
    assert [row["over fp32 [95 % interval]"] for row in columns[1:3]] == [
        "2.000 [2.000, 2.000]",
        "2.500 [2.500, 2.500]",
    ]
    assert columns[2]["over the one it builds on [95 % interval]"] == "1.250 [1.250, 1.250]"
    assert [row["peak memory (MiB)"] for row in columns] == ["100.0", "60.00", "50.00", "–"]
    assert [row["limited by"] for row in columns] == ["launch", "arithmetic", "loader", "–"]
    assert [row["builds on"] for row in columns] == ["–", "fp32", "amp-bf16", "+ set-to-none"]
    assert [row["waiting for data (%)"] for row in columns] == ["5.0", "5.0", "5.0", "–"]
    assert {row["measured in"] for row in columns[1:3]} == {"3 processes"}
    assert {row["test accuracy (%)"] for row in columns} == {"not trained"}
    assert columns[3]["status"] == "unsupported: no GPU"


def test_the_verdict_says_how_far_it_pays_to_climb(run: RunBuilder) -> None:
    (ladder,) = climbed(load([run.folder]))
    said = sentence(ladder)
    assert said.advice == "climb to + set-to-none"
    assert said.evidence == (
        "2.500 [2.500, 2.500]× as fast as fp32 (FASTER) at −50 % peak memory; there the loader is the limit, not "
        "arithmetic; the rung that brings most is amp-bf16, 2.000 [2.000, 2.000]× as fast as the one before (FASTER)"
    )
    assert report([run.folder], run.folder / "report", figures="none")[1] == [str(said)]


def test_where_no_rung_gains_the_advice_is_fp32(run: RunBuilder) -> None:
    blocks = run.folder / "blocks.csv"
    lines = blocks.read_text().splitlines()
    swapped = [line.replace(",fp32,", ",swap,").replace(",amp-bf16+set-to-none,", ",fp32,") for line in lines]
    blocks.write_text("\n".join(line.replace(",swap,", ",amp-bf16+set-to-none,") for line in swapped) + "\n")
    (ladder,) = climbed(load([run.folder]))
    assert sentence(ladder).advice == "stay with fp32"
    assert sentence(ladder).evidence.startswith("nothing gains: the fastest rung, amp-bf16, is 0.800")


def test_rungs_are_not_taken_for_precisions_and_the_page_has_the_stairs(run: RunBuilder, tmp_path: Path) -> None:
    runs = load([run.folder])
    assert runs.trials.empty
    assert runs.blocks.empty
    text = publish(runs, tmp_path / "report")[0].read_text()
    assert "climb to + set-to-none" in text
    assert (tmp_path / "report" / "vit-b-16-nvidia-test-1-b64-ladder.png").stat().st_size > 10_000


def climb(rung: int, *, limited: bool = False) -> AblationResult:
    return AblationResult(ablation_step=rung, loader_ms=1.0, wait_pct=5.0, steps_per_epoch=500, loader_limited=limited)


def apart(builder: RunBuilder, steps_ms: dict[str, list[float]]) -> RunBuilder:
    """Rungs that do not fit together: in each process all at once run out of memory, and then each is alone."""
    for replicate in range(max(map(len, steps_ms.values()))):
        joint = builder.trial("ladder", list(steps_ms), 64, replicate=replicate)
        builder.add(joint, *(TrialResult(precision=name, status="oom", detail="too big") for name in steps_ms))
        for rung, (name, values) in enumerate(steps_ms.items()):
            if replicate < len(values):
                speed = timed(values[replicate], 64, paired=False)
                result = TrialResult(precision=name, status="ok", speed=speed, ablation=climb(rung))
                builder.add(builder.trial("ladder", [name], 64, replicate=replicate), result)
    return builder


def shown(builder: RunBuilder) -> dict[str, dict[str, str]]:
    (ladder,) = climbed(load([builder.folder]))
    made = table_of(ladder)
    return {row[0]: dict(zip(made.headers, row, strict=True)) for row in made.rows}


def test_rungs_measured_apart_have_an_interval_over_processes(tmp_path: Path) -> None:
    steps = {"fp32": [8.0, 8.1, 7.9], "amp-bf16": [4.0, 4.05, 3.95], "amp-bf16+set-to-none": [4.0, 4.05, 3.95]}
    rows = shown(apart(RunBuilder(tmp_path / "run"), steps))
    assert [row["status"] for row in rows.values()] == ["ok"] * 3
    assert {row["measured in"] for row in list(rows.values())[1:]} == {"3 processes apart"}
    assert rows["amp-bf16"]["over fp32 [95 % interval]"].startswith("2.000 [1.9")
    assert rows["+ set-to-none"]["over the one it builds on [95 % interval]"].startswith("1.000 [0.9")
    assert (rows["fp32"]["limited by"], rows["fp32"]["builds on"]) == ("launch or arithmetic", "–")


def test_one_process_each_gives_a_ratio_that_says_it_has_no_interval(tmp_path: Path) -> None:
    builder = apart(RunBuilder(tmp_path / "run"), {"fp32": [8.0], "amp-bf16": [4.0]})
    row = shown(builder)["amp-bf16"]
    assert row["over fp32 [95 % interval]"] == "2.000 (no interval)"
    assert row["measured in"] == "one process apart"
    (ladder,) = climbed(load([builder.folder]))
    assert sentence(ladder).advice == "no verdict"
    assert "2.000 (no interval)× as fast" in sentence(ladder).evidence
    assert sentence(ladder).evidence.endswith("no rung is known to gain on the one before")


def test_a_rung_that_ran_out_of_memory_is_a_row_and_those_above_stand_below_it(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    where = "CUDA out of memory | File train.py, line 1 / raise"
    builder.lost("ladder_memory", "amp-bf16+set-to-none", "oom", where, batch=64)
    rows = shown(apart(builder, {"fp32": [8.0, 8.1], "amp-bf16": [4.0, 4.1], "amp-bf16+compile": [2.0, 2.05]}))
    assert list(rows) == ["fp32", "amp-bf16", "+ set-to-none", "+ compile"]
    assert rows["+ set-to-none"]["status"] == "oom: CUDA out of memory"
    assert rows["+ compile"]["builds on"] == "amp-bf16"
    assert rows["+ compile"]["over the one it builds on [95 % interval]"].startswith("2.000 [")


def test_without_fp32_there_is_no_ratio_over_it_and_the_rest_is_shown(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.lost("ladder_memory", "fp32", "oom", "too big", batch=64)
    apart(builder, {"amp-bf16": [4.0, 4.1], "amp-bf16+set-to-none": [2.0, 2.05]})
    rows = shown(builder)
    assert {row["over fp32 [95 % interval]"] for row in rows.values()} == {"–"}
    assert rows["+ set-to-none"]["over the one it builds on [95 % interval]"].startswith("2.000 [")
    (ladder,) = climbed(load([builder.folder]))
    assert sentence(ladder).advice == "no verdict"
    publish(load([builder.folder]), tmp_path / "report")
    assert list((tmp_path / "report").glob("*-ladder.svg"))


def test_accuracy_is_that_of_a_training_of_the_same_arithmetic(tmp_path: Path) -> None:
    steps = {name: [4.0, 4.1] for name in ("fp32", "amp-bf16", "amp-bf16+set-to-none")}
    steps["amp-bf16+set-to-none+checkpointing"] = [5.0, 5.1]
    builder = apart(RunBuilder(tmp_path / "run"), steps)
    builder.train("fp32", [90.0, 91.0], batch=64).train("amp-bf16", [89.5], batch=64)
    builder.train("amp-bf16", [50.0], batch=128)
    assert [row["test accuracy (%)"] for row in shown(builder).values()] == [
        "90.50 [84.15, 96.85]",
        "89.50 (one seed, no interval)",
        "89.50 (one seed, no interval)",
        "not trained",
    ]
    publish(load([builder.folder]), tmp_path / "report")
    (drawn,) = (tmp_path / "report").glob("*-ladder.svg")
    assert "Accuracy where trained" in drawn.read_text()


def test_a_terminal_has_the_words_to_the_left_and_no_more_columns_than_it_has_room_for(run: RunBuilder) -> None:
    (ladder,) = climbed(load([run.folder]))
    made = short(ladder)
    words = [column.header for column in made.columns if column.align == "left"]
    assert words == ["ablation step", "limited by", "status"]
    assert {"over fp32 [95 % interval]", "over the one it builds on [95 % interval]"} <= set(made.headers)
    assert made.title.startswith("Ladder of vit_b_16")


def test_rungs_of_which_the_same_is_said_share_a_note(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    for replicate in range(3):
        results = [
            TrialResult(
                precision=name,
                status="unconverged",
                detail="too wide",
                speed=timed(4.0, 64, foreign_load_pct=30.0, steady=rung != 1),
                ablation=climb(rung),
            )
            for rung, name in enumerate(STEPS_MS)
        ]
        builder.add(builder.trial("ladder", list(STEPS_MS), 64, replicate=replicate), *results)
    told = notes(load([builder.folder]).climbs)
    assert told is not None
    every = "fp32, amp-bf16, + set-to-none"
    rows = [dict(zip(told.headers, row, strict=True)) for row in told.rows]
    assert [(row["status"], row["precision"], row["trials"]) for row in rows] == [
        ("unconverged", every, "3"),
        ("not steady", "amp-bf16", "3"),
        ("crowded", every, "3"),
    ]


def test_how_to_read_speaks_of_the_steps_that_were_timed(run: RunBuilder, tmp_path: Path) -> None:
    resident, fed = "timed on data already on the device", "timed with the loader that feeds them"
    only = publish(load([run.folder]), tmp_path / "only", figures="none")[0].read_text()
    assert (resident in only, fed in only) == (False, True)
    run.train("fp32", [90.0], batch=64)
    trained = publish(load([run.folder]), tmp_path / "trained", figures="none")[0].read_text()
    assert (resident in trained, fed in trained) == (False, True)
    run.memory("fp32", 100.0)
    both = publish(load([run.folder]), tmp_path / "both", figures="none")[0].read_text()
    assert (resident in both, fed in both) == (True, True)
    speed = RunBuilder(tmp_path / "speed").memory("fp32", 100.0)
    plain = publish(load([speed.folder]), tmp_path / "plain", figures="none")[0].read_text()
    assert (resident in plain, fed in plain) == (True, False)
