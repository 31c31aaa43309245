"""An ablation's table, verdict and notes, from blocks that are known."""

from dataclasses import replace

import pytest

from bench.phases.ladder.report import full, verdict
from bench.results.records import Operations, TrialResult
from tests.report.ablations import (
    AMP,
    ZEROED_AMP,
    ablation_of,
    apart,
    scattered,
    together,
    whole,
)
from tests.report.builders import RunBuilder, timed
from tests.report.tables.lines import lines
from tests.rows import edit_rows


def shown(builder):
    return {line["ablation step"]: line for line in lines(full(ablation_of(builder)))}


@pytest.fixture
def run(tmp_path):
    return whole(RunBuilder(tmp_path / "run", suite="vit_b_16"))


def test_ablation_steps_are_in_order_with_their_time_and_memory(run):
    columns = lines(full(ablation_of(run)))
    assert [row["ablation step"] for row in columns] == [
        "fp32",
        "amp-bf16",
        "+ set-to-none",
        "+ non-blocking",
    ]
    assert [row["step (ms)"] for row in columns] == ["8.000", "4.000", "3.200", "–"]
    assert [row["peak memory (MiB)"] for row in columns] == ["100.0", "60.00", "50.00", "–"]
    assert [row["builds on"] for row in columns] == ["–", "fp32", "amp-bf16", "+ set-to-none"]
    assert {row["measured in"] for row in columns[1:3]} == {"3 processes"}
    assert columns[3]["status"] == "unsupported: no GPU"


def test_steps_measured_apart_have_an_interval_over_processes(tmp_path):
    steps = {
        "fp32": [8.0, 8.1, 7.9],
        "amp-bf16": [4.0, 4.05, 3.95],
        "amp-bf16+set-to-none": [4.0, 4.05, 3.95],
    }
    rows = shown(apart(RunBuilder(tmp_path / "run"), steps))
    assert [row["status"] for row in rows.values()] == ["ok"] * 3
    assert {row["measured in"] for row in list(rows.values())[1:]} == {"3 processes apart"}
    assert rows["amp-bf16"]["over fp32 [95 % interval]"].startswith("2.000 [1.9")
    assert rows["+ set-to-none"]["over the one it builds on [95 % interval]"].startswith(
        "1.000 [0.9"
    )
    assert rows["fp32"]["builds on"] == "–"


def test_one_process_each_gives_a_ratio_that_says_it_has_no_interval(tmp_path):
    builder = apart(RunBuilder(tmp_path / "run"), {"fp32": [8.0], "amp-bf16": [4.0]})
    row = shown(builder)["amp-bf16"]
    assert row["over fp32 [95 % interval]"] == "2.000 (no interval)"
    assert row["measured in"] == "one process apart"
    ladder = ablation_of(builder)
    assert verdict(ladder).startswith("no verdict — ")
    assert "2.000 (no interval)× as fast" in verdict(ladder)


def test_a_step_that_ran_out_of_memory_is_a_row_and_those_above_build_on_the_one_below(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    where = "CUDA out of memory | File train.py, line 1 / raise"
    builder.lost("memory", "amp-bf16+set-to-none", "oom", where, batch=64, ablation=True)
    rows = shown(
        apart(
            builder, {"fp32": [8.0, 8.1], "amp-bf16": [4.0, 4.1], "amp-bf16+compile": [2.0, 2.05]}
        )
    )
    assert list(rows) == ["fp32", "amp-bf16", "+ set-to-none", "+ compile"]
    assert rows["+ set-to-none"]["status"] == "oom: CUDA out of memory"
    assert rows["+ compile"]["builds on"] == "amp-bf16"
    assert rows["+ compile"]["over the one it builds on [95 % interval]"].startswith("2.00 [")


@pytest.mark.parametrize(
    ("endings", "status"),
    [
        (["timeout", "failed"], "failed"),
        (["ok", "failed"], "ok"),
        (["unconverged", "ok"], "unconverged"),
    ],
)
def test_a_step_is_timed_if_one_process_was_and_else_has_the_last_failure(
    tmp_path, endings, status
):
    builder = RunBuilder(tmp_path / "run")
    for replicate, ending in enumerate(endings):
        builder.lost("speed", AMP, ending, batch=64, replicate=replicate, ablation=True)
    (step,) = ablation_of(builder).rows
    assert step["status"] == status


def test_a_failure_of_memory_does_not_count_beside_one_of_speed_even_if_it_came_later(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    builder.lost("memory", AMP, "oom", batch=64, ablation=True)
    builder.lost("speed", AMP, "timeout", batch=64, ablation=True)
    edit_rows(builder.folder, lambda row: row.update(started="2100-01-01"), "memory.csv")
    (step,) = ablation_of(builder).rows
    assert step["status"] == "timeout"


def test_without_fp32_there_is_no_ratio_over_it_and_the_rest_is_shown(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    builder.lost("memory", "fp32", "oom", "too big", batch=64, ablation=True)
    apart(builder, {"amp-bf16": [4.0, 4.1], "amp-bf16+set-to-none": [2.0, 2.05]})
    rows = shown(builder)
    assert {row["over fp32 [95 % interval]"] for row in rows.values()} == {"–"}
    assert rows["+ set-to-none"]["over the one it builds on [95 % interval]"].startswith("2.00 [")
    assert verdict(ablation_of(builder)).startswith("no verdict — ")


NOISE = (-0.1, 0.0, 0.1)


@pytest.mark.parametrize(
    ("speeds", "advised", "fastest"),
    [
        (
            {AMP: scattered(2), ZEROED_AMP: scattered(2.1, *NOISE)},
            AMP,
            "+ set-to-none, is not shown to beat it (1.05",
        ),
        # Noise that both share.
        (
            {AMP: scattered(2, *NOISE), ZEROED_AMP: scattered(2.2, *NOISE)},
            "+ set-to-none",
            "",
        ),
        (
            {
                AMP: scattered(2),
                ZEROED_AMP: scattered(2.0, -0.01, 0.0, 0.01),
                f"{ZEROED_AMP}+compile": scattered(3),
                f"{ZEROED_AMP}+compile+checkpointing": scattered(2.5),
            },
            "+ compile",
            "",
        ),
    ],
)
def test_the_lowest_step_that_no_higher_one_is_shown_to_beat_is_advised(
    tmp_path, speeds, advised, fastest
):
    text = verdict(together(RunBuilder(tmp_path / "run"), {"fp32": scattered(1), **speeds}))
    assert text.startswith(f"go up to {advised} — ")
    assert f"; the fastest, {fastest}" in text if fastest else "the fastest," not in text


def test_the_verdict_is_marked_where_it_rests_on_one_process_or_did_not_converge(tmp_path):
    gains = {"fp32": [[1.0] * 5], AMP: [[1.2, 1.3, 1.25, 1.24, 1.26]]}
    text = verdict(
        together(RunBuilder(tmp_path / "one", target_ci=0.01), gains, status="unconverged")
    )
    assert text.startswith("go up to amp-bf16 — ")
    assert "× as fast as fp32 (FASTER, one process, unconverged)" in text
    speeds = {"fp32": [[1.0] * 5] * 3, AMP: [[2.0] * 5, [2.1] * 5, [1.9] * 5]}
    wide = together(RunBuilder(tmp_path / "between", target_ci=0.01), speeds)
    assert [row["status"] for row in wide.rows] == ["ok", "unconverged"]
    undecided = together(
        RunBuilder(tmp_path / "wide"), {"fp32": [[1.0] * 5], AMP: [[0.8, 1.3, 1.25, 0.7, 1.1]]}
    )
    assert verdict(undecided).startswith("no verdict — ")
    assert "× as fast as fp32 (INCONCLUSIVE, one process)" in verdict(undecided)


def test_a_verdict_over_an_fp32_that_computed_in_another_type_is_marked(tmp_path):
    gains = {"fp32": scattered(1), AMP: scattered(2)}
    for types, word in (("", "FASTER"), ("bfloat16:90% float32:10%", "FASTER ≠")):
        builder = RunBuilder(tmp_path / word)
        ladder = together(builder, gains, operations=Operations(compute_dtypes=types))
        assert f"× as fast as fp32 ({word}, 3 processes)" in verdict(ladder)


@pytest.mark.parametrize(
    ("steps", "advice"),
    [
        (1, "go up to amp-bf16"),
        (2, "no verdict"),  # the gain over fp32 of each, and that of one over the other
        (7, "no verdict"),
    ],
)
def test_among_many_steps_of_few_rounds_one_that_barely_clears_the_noise_is_chance(
    tmp_path, steps, advice
):
    techniques = "set-to-none non-blocking prefetcher channels-last fused-optimizer compile"
    speeds = {"fp32": [[1.0] * 5], AMP: [[1.05, 1.17, 1.1, 1.08, 1.12]]}
    name = AMP
    for technique in techniques.split()[: steps - 1]:
        name += f"+{technique}"
        speeds[name] = [[0.9, 1.1, 1.0, 1.05, 0.95]]
    text = verdict(together(RunBuilder(tmp_path / "run"), speeds))
    assert text.startswith(advice)
    assert ("(FASTER, one process)" in text) == (steps == 1)


@pytest.mark.parametrize(
    ("batch", "least", "gain", "texts"),
    [
        (64, 0.98, 1.04, ("no verdict", "A/A noise, here 7.5 %")),
        (64, 0.9999, 1.04, ("go up to amp-bf16", "A/A noise, here 1.1 %")),
        (128, 0.98, 1.04, ("go up to amp-bf16", "A/A noise, assumed to be 1.0 %.")),
        (128, 0.9999, 0.96, ("stay with fp32", "A/A noise, assumed to be 1.0 %.")),
    ],
)
def test_the_noise_is_that_of_fp32_against_itself_at_the_same_batch_size(
    tmp_path, batch, least, gain, texts
):
    builder = RunBuilder(tmp_path / "run")
    for replicate, ratio in enumerate((least, 1.0, 1 / least)):
        trial = builder.trial("floor", ["fp32"], batch, replicate=replicate)
        # Which are ablation steps.
        trial = replace(trial, cell=replace(trial.cell, techniques=("channels-last",)))
        speed = timed(8.0, batch, speedup=ratio, within=0.01)
        builder.add(trial, TrialResult(arm="fp32", status="ok", row=speed))
    ladder = together(builder, {"fp32": scattered(1), AMP: scattered(gain)})
    assert verdict(ladder).startswith(texts[0])
    assert texts[1] in full(ladder).about
