"""Summary of trials: one row for each precision of a cell, with memory, speed and training side by side."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis import alone as each_alone
from bench.report.analysis.contrast import (
    ARM,
    IN_CELL,
    PRECISION,
    Arm,
    Contrast,
    arms,
    contrasts,
    estimate,
    intervals,
    numbered,
)
from bench.report.analysis.doubts import doubts
from bench.report.analysis.judge import judge_speedups, parity
from bench.report.format import known, number, processes, records
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, KEY, SUBJECT, is_emulated
from bench.results.records import MEASURED
from bench.spec.generations import generation_rank
from bench.spec.metric import QUALITY_OF, Metric
from bench.spec.metrics import ALONE, ENERGY, EPOCH, MEMORY, METRICS, SPEED, THROUGHPUT, learned
from bench.spec.precisions import BASELINE, find_precision, precision_rank, strayed

IEEE_ERROR = 3e-5
"""An fp32 matrix product with a larger error than this was not computed in IEEE fp32."""
ENERGY_FIGURES = ["energy_source", "energy_j_per_step", "energy_net_j_per_step", "mean_power_w", "idle_power_w"]
ENERGY_FIGURES += ["energy_window_s", "energy_steps"]
ROUNDED = ("tf32", "bf16")
"""Settings of the fp32 switches under which factors are rounded before they are multiplied."""
MEASURES = ["speed_status", "memory_status", "train_status"]
"""Columns of a precision's status; the first that is set counts."""
UNSUPPORTED = "unsupported"
RENAMED = {"test_accuracy_pct": "accuracy_pct", "test_accuracy_fp32_pct": "accuracy_fp32_pct"}
FIGURES = ["train_loss", "test_loss", "test_accuracy_pct", "test_accuracy_fp32_pct"]
FIGURES += ["data_wait_pct", "train_samples_per_s", "total_s", "time_to_accuracy_s", "checkpoint_bytes"]
FIGURES += ["checkpoint_16bit_bytes", "train_energy_j", "entropy_nats", "quality"]
ENTROPY = ["above_entropy", "above_entropy_low", "above_entropy_high"]
RATES = ["step_ms", "samples_per_s", "tokens_per_s"]
SPEEDUP = ["speedup", "speedup_low", "speedup_high"]
DIAGNOSTICS = ["flops_per_step", "tflops", "peak_tflops", "pct_of_peak", "host_ratio", "step_p50_ms", "step_p95_ms"]
DIAGNOSTICS += ["switch_warmup_steps", "block_steps", "switch_transient_pct", "foreign_load_pct"]


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each precision of each cell, ordered as tables show them.

    As well as the columns of ``KEY`` it has those of ``speeds``, ``details``, ``trainings`` and ``_changes``,
    ``memory_status``, ``memory_bytes``, ``all_devices_bytes`` (the sum over devices that train together),
    ``energy_status`` and ``ENERGY_FIGURES``, of which ``energy_j_per_step`` is gross,
    ``matmul_error``, ``strayed`` (``other_types``) and ``fp32_strayed`` (that of the fp32 that it is compared with),
    ``lost_speed`` and ``lost_train`` (how many trials did not count), the status of every other phase, what each arm
    measured of each metric (``Metric.arm``), and the names of ``labels.subjects``.
    """
    trials = numbered(trials)
    measured = {metric: arms(trials, metric) for metric in METRICS.values()}
    changes = {metric: contrasts(metric, by_arm) for metric, by_arm in measured.items()}
    every = trials.drop_duplicates(ARM).set_index(ARM)[[IN_CELL, *KEY, "missing_trials"]]
    tried = [
        _tried(trials, MEMORY, {"all_devices_bytes": "max"}),
        _tried(trials, ENERGY, dict.fromkeys(ENERGY_FIGURES, "last")),
    ]
    timed = speeds(trials, changes[SPEED], changes[ALONE])
    table = every.join([*tried, timed, details(trials), trainings(trials), _changes(changes)])
    table.loc[table["diverged"] > 0, "parity"] = "diverged"  # also where no seed is left to compare
    table = table.join(_general(measured)).copy()  # defragments it
    table.loc[table["data"] == "script", "samples_per_s"] = None  # a script's batch size is its own
    table["matmul_error"] = trials.groupby(ARM, sort=False)["matmul_error"].max()
    table["strayed"] = other_types(trials).groupby(trials[ARM], sort=False).first()
    table["stalled"] = stalled(trials)
    lost = _lost(trials)
    for phase in {"numerics", "inference", *(metric.phase for metric in METRICS.values())}:
        if f"{phase}_status" not in table:
            rows = trials[trials["phase"] == phase]
            table[f"{phase}_status"] = status_of(rows, rows["status"].isin(MEASURED))
    for phase in ("speed", "train"):
        counts = lost[lost["phase"] == phase].groupby(ARM, sort=False).size()
        table[f"lost_{phase}"] = counts.reindex(table.index, fill_value=0)
    table = table.merge(subjects(trials), on=SUBJECT, how="left")
    of_fp32 = table["strayed"].where(table["precision"] == BASELINE)
    table["fp32_strayed"] = of_fp32.groupby([table[name] for name in SUBJECT]).transform("first")
    table["in_common"] = _in_common(table)
    table["rank"] = table["precision"].map({name: precision_rank(name) for name in table["precision"].unique()})
    table["generation"] = table["architecture"].map(generation_rank)
    order = ["suite", "parameters", "techniques", "data", "generation", "architecture", "device", "run", "placement"]
    order += ["batch_size", "rank"]
    table["doubts"] = [doubts(row) for row in records(table)]
    table = table.sort_values(order, kind="stable", ignore_index=True).drop(columns=IN_CELL)
    return table.copy()  # likewise


def _changes(contrasts: Mapping[Metric, Mapping[int, Contrast]]) -> pd.DataFrame:
    """Return how each precision differs from fp32, by the arm's number: the contrasts as columns.

    ``memory_change`` and ``energy_change`` are shares of fp32's, negative is less; the former is empty where the
    instrument cannot tell the two apart. ``epoch_speedup`` is with its 95 % interval and ``epoch_seeds``. What was
    learned has the difference with its 90 % interval, ``delta_seeds`` and ``parity``. A metric without a place of its
    own has its ``shown`` change with its 95 % interval.
    """
    parts = []
    for metric, by_arm in contrasts.items():
        if metric.seed_is_input and metric.tabled:
            parts.append(intervals(by_arm, metric.changes, lambda contrast: contrast.at(0.90)))
        elif metric in (MEMORY, ENERGY):
            shown = intervals(
                by_arm, metric.changes, lambda contrast: contrast.shown if contrast.is_resolvable else None
            )
            parts.append(shown[[metric.change]] - 1)
        elif metric is EPOCH:
            epoch = intervals(by_arm, ["epoch_speedup", "epoch_low", "epoch_high"], lambda contrast: contrast.gain)
            seeds = {number: float(contrast.change.n) for number, contrast in by_arm.items()}
            parts.append(epoch.assign(epoch_seeds=pd.Series(seeds, dtype=float)))
        elif metric is ALONE or not metric.tabled:
            parts.append(intervals(by_arm, metric.changes, lambda contrast: contrast.shown))
    judged = [item for metric in reversed(learned()) for item in contrasts[metric].items()]  # the first one counts
    seeds_of = pd.Series({number: contrast.change.n for number, contrast in judged}, dtype=float)
    words = pd.Series({number: parity(contrast) for number, contrast in judged}, dtype=object)
    return pd.concat([*parts, pd.DataFrame({"delta_seeds": seeds_of, "parity": words})], axis=1)


def _general(measured: Mapping[Metric, Mapping[int, Arm]]) -> pd.DataFrame:
    """Return what each arm measured of each metric; its figures, too, if no other function makes them."""
    columns: dict[str, pd.Series] = {}
    for metric, by_arm in measured.items():
        columns[metric.arm] = pd.Series(dict(by_arm), dtype=object)
        if metric in (MEMORY, ALONE) or not metric.tabled:
            figures = {number: arm.figure(metric) for number, arm in by_arm.items()}
            columns[metric.figure] = pd.Series(figures, dtype=float)
    return pd.DataFrame(columns)


def stalled(trials: pd.DataFrame) -> pd.Series:
    """Return the losses of each arm that does not learn where fp32 does, in words, by its number.

    Fp32 learns if its loss falls by more than its last losses differ between seeds, with one seed or two, which may
    agree by chance, by a tenth as well. An arm does not if its own falls by less than a tenth of that. Where an arm was
    trained, epochs count, else the steps of the numerics phase; the share of its gradients that are zero is the
    latter's.
    """
    rows = trials[trials["phase"].isin(("train", "numerics")) & trials["status"].isin(MEASURED)]
    zeros = rows.groupby(ARM)["zero_gradients_pct"].mean()
    words: dict[Any, str] = {}
    for phase in ("numerics", "train"):  # the last counts
        of_arms = rows[(rows["phase"] == phase) & rows["first_loss"].notna()].groupby([IN_CELL, ARM, "precision"])
        means, last = of_arms[["first_loss", "last_loss"]].mean(), of_arms["last_loss"]
        spread = last.max() - last.min()
        spread = spread.mask(last.size() < 3, np.maximum(spread, 0.1 * means["first_loss"].abs()))
        courses = records(means.assign(fall=means["first_loss"] - means["last_loss"], spread=spread).reset_index())
        baselines = {row[IN_CELL]: row for row in courses if row["precision"] == BASELINE}
        for row in courses:
            words.pop(row[ARM], None)
            fp32 = baselines.get(row[IN_CELL], row)
            if fp32["fall"] > fp32["spread"] and row["fall"] < 0.1 * fp32["fall"]:
                parts = [f"{number(each['first_loss'], 3)} → {number(each['last_loss'], 3)}" for each in (row, fp32)]
                precision, zero = find_precision(row["precision"]), zeros.get(row[ARM], math.nan)
                where = " in float16" if precision and precision.autocast == "float16" else ""
                lost = f"; {number(zero, 2)} % of its gradients are zero{where}" if known(zero) else ""
                words[row[ARM]] = f"loss {parts[0]}, {BASELINE} {parts[1]}{lost}"
    return pd.Series(words, dtype=object)


def _lost(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of speed and training that do not count, a row for each arm, process and seed.

    An arm that did not fit in memory together with others, and was then measured alone, has lost nothing.
    """
    rows = trials[trials["phase"].isin(("speed", "train"))]
    trial = [ARM, "phase", "replicate", "seed"]
    counted = rows["status"].isin(MEASURED)
    measured = counted.groupby([rows[name] for name in trial], dropna=False).transform("any")
    apart = rows["status"].eq("oom") & measured.astype(bool)
    return rows[~counted & ~apart].drop_duplicates(trial)


def _tried(trials: pd.DataFrame, metric: Metric, more: Mapping[str, str]) -> pd.DataFrame:
    """Return the status of each arm that was tried in a metric's phase, and ``more`` columns, by the arm's number."""
    rows = trials[trials["phase"] == metric.phase]
    usable = rows["status"].isin(MEASURED) & metric.is_possible(rows[list(metric.columns)]).any(axis=1)
    others = rows[usable].groupby(ARM, sort=False)[list(more)].agg(dict(more))
    return status_of(rows, usable).to_frame(metric.status).join(others)


def other_types(trials: pd.DataFrame) -> pd.Series:
    """Return for each trial's row which products ran in another type than its precision's, in words; None without any.

    They are those that a step was seen to compute, and of fp32 all where its switches or a probed product say so.
    """
    seen = trials[["precision", "compute_dtypes", "other_modules"]].itertuples(index=False)
    words = pd.Series([strayed(*row) or None for row in seen], trials.index, dtype=object)
    switched = trials[["fp32_matmul", "fp32_conv", "fp32_rnn"]].isin(ROUNDED).any(axis=1)
    rounded = (trials["precision"] == BASELINE) & (switched | (trials["matmul_error"] > IEEE_ERROR))
    return words.mask(words.isna() & rounded, "rounded its products to TF32 or less")


def trainings(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of ``numbered`` trials that was trained, by its number.

    Figures are means over the seeds that finished, but for ``time_per_epoch_s``, the median over seeds of each one's
    median epoch after the first; ``fastest_epoch_s`` and ``slowest_epoch_s`` are the ends of these epochs.
    ``time_to_accuracy_s`` is the mean over those that reached
    ``target_accuracy_pct``, and ``reached`` is their number. ``diverged`` counts the seeds that diverged where fp32 did
    not, ``fp32_diverged`` those in which fp32 did. ``token_loss`` is the mean test loss of tokens,
    and ``perplexity`` is e to its power. The columns of ``_above_entropy`` are joined.
    """
    rows = trials[trials["phase"] == "train"]
    trained = rows["time_per_epoch_s"].notna() | is_emulated(rows["precision"])  # those have no times
    usable = rows["status"].isin(MEASURED) & trained
    table = status_of(rows, usable).to_frame("train_status")
    done = rows[usable].groupby(ARM, sort=False)
    table = table.join(done[FIGURES].mean().rename(columns=RENAMED))
    table["time_per_epoch_s"] = done["time_per_epoch_s"].median()
    table["fastest_epoch_s"], table["slowest_epoch_s"] = done["fastest_epoch_s"].min(), done["slowest_epoch_s"].max()
    table["epochs"] = done["epochs"].max()
    table["data_storage"] = done["data_storage"].first()
    table[[*QUALITY_OF]] = done[[*QUALITY_OF]].first()
    table["regression"] = done["regression"].first() == "yes"
    table["accuracy_sd"] = done["test_accuracy_pct"].std()
    table["seeds"] = done.size()
    table["target_accuracy_pct"] = done["target_accuracy_pct"].max()
    table["reached"] = done["time_to_accuracy_s"].count()
    table = table.join(_diverged(rows)).fillna({"diverged": 0, "fp32_diverged": 0})
    table["token_loss"] = table["test_loss"].where(table["accuracy_pct"].isna()).astype(float)
    table["perplexity"] = np.exp(table["token_loss"])
    return table.join(_above_entropy(rows[usable]))


def _above_entropy(done: pd.DataFrame) -> pd.DataFrame:
    """Return how far each arm's test loss lies above the data's entropy rate, where that is known, by its number.

    ``above_entropy`` is the mean over seeds in nats a token, with Student's 95 % interval.
    """
    rows = done[done["entropy_nats"].notna() & done["test_loss"].notna()]
    groups = (rows["test_loss"] - rows["entropy_nats"]).groupby(rows[ARM], sort=False)
    intervals_of = {arm: stats.student(group.to_numpy(dtype=np.float64)) for arm, group in groups}
    ends = [interval.ends for interval in intervals_of.values()]
    return pd.DataFrame(ends, pd.Index(list(intervals_of), dtype="int64"), ENTROPY).astype(float)


def _diverged(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the seeds in which each arm diverged but fp32 did not, and those in which fp32 diverged.

    In fp32's own row both are the seeds in which it diverged. ``diverged_seeds`` are all seeds in which an arm did.
    """
    lost = rows.loc[rows["status"] == "nonfinite", [ARM, IN_CELL, "precision", "seed"]].drop_duplicates()
    fp32 = lost.loc[lost["precision"] == BASELINE, [IN_CELL, "seed"]].assign(recipe=True)
    alone = lost.merge(fp32, on=[IN_CELL, "seed"], how="left")
    alone = alone[alone["recipe"].isna() | (alone["precision"] == BASELINE)]
    cells = rows.drop_duplicates(ARM).set_index(ARM)[IN_CELL]
    by_cell = fp32.groupby(IN_CELL).size()
    counts = {"fp32_diverged": cells.map(by_cell), "diverged": alone.groupby(ARM).size()}
    seeds = {number: frozenset(group) for number, group in lost.groupby(ARM)["seed"]}
    return pd.DataFrame({**counts, "diverged_seeds": pd.Series(seeds, dtype=object)}, index=cells.index)


def status_of(rows: pd.DataFrame, usable: pd.Series) -> pd.Series:
    """Return one word for each arm of ``numbered`` rows, by its number.

    Where anything was measured it is ``ok`` or ``unconverged``; otherwise the last trial's own word.
    """
    word = rows["status"].where(usable | ~rows["status"].isin(MEASURED), "failed")
    rank = usable.astype(int) + (usable & (word == "unconverged")).astype(int)
    ranked = pd.DataFrame({ARM: rows[ARM], "word": word, "rank": rank})
    return ranked.sort_values("rank", kind="stable").groupby(ARM, sort=False)["word"].last()


def speeds(trials: pd.DataFrame, contrasts: Mapping[int, Contrast], alone: Mapping[int, Contrast]) -> pd.DataFrame:
    """Return one row for each arm whose speed was tried, by its number.

    ``RATES`` are medians over processes. ``speedup`` has the interval of its contrast with fp32, ``verdict`` its word,
    and ``measured_in`` says over which processes, ``disturbed`` whether all of these were. Nothing measured leaves the
    figures empty. ``noise`` is that of ``noises``, empty where it was not measured, and ``power_capped`` whether the
    power limit held the clock down, which the precisions then shared. Where the speedup alone counts
    (``each_alone.counts``), these are of it, and ``IN_TURNS`` is filled; without one a verdict at the power limit is
    FASTER only beyond ``judge.SHARED_CLOCK``.

    Args:
        trials: rows from ``numbered``.
        contrasts: each precision's step time against fp32's, by the arm's number.
        alone: its throughput alone against fp32's.
    """
    rows = trials[trials["phase"] == "speed"]
    usable = rows["status"].isin(MEASURED) & rows["step_ms"].gt(0)
    groups = rows[usable].groupby(ARM, sort=False)
    table = status_of(rows, usable).to_frame("speed_status").join(groups[RATES].median().astype(float))
    of_cells = noises(trials)
    cells = rows.drop_duplicates(ARM).set_index(ARM)[CELL]
    noise = {number: of_cells.get(tuple(cell)) for number, *cell in cells.itertuples(name=None)}
    table["noise"] = pd.Series(noise, dtype=float)
    capped = rows["power_capped"].eq("yes").groupby(rows[ARM], sort=False).any()
    table["power_capped"] = capped
    turns = {
        number: replace(contrast, noise=noise[number], shares_clock=bool(capped[number]))
        for number, contrast in contrasts.items()
    }
    apart = {number: alone[number] for number in turns if each_alone.counts(turns[number], alone.get(number))}
    of_arms = turns | apart
    table = table.join(intervals(of_arms, ["speedup", "low", "high"], lambda contrast: contrast.gain))
    in_turns = {number: turns[number] for number in apart}
    table = table.join(intervals(in_turns, each_alone.IN_TURNS, lambda contrast: contrast.gain))
    wide = (table["high"] / table["low"]) ** 0.5 - 1
    words = judge_speedups([each_alone.judged(turns[number], apart.get(number)) for number in turns])
    table["verdict"] = pd.Series(dict(zip(of_arms, words, strict=True)), dtype=object)
    table["measured_in"] = pd.Series(
        {number: measured_in(contrast) for number, contrast in of_arms.items()}, dtype=object
    )
    disturbed = {number: contrast.is_disturbed for number, contrast in contrasts.items()}
    table["disturbed"] = pd.Series(disturbed, dtype=object)
    table["timed_processes"] = groups.size()
    asked = groups["target_ci"].max().reindex(table.index)
    measured = table["speed_status"].isin(MEASURED)
    table["speed_status"] = table["speed_status"].mask(measured & wide.gt(asked), "unconverged")
    return table


def measured_in(contrast: Contrast) -> str:
    """Say over which processes a contrast is, and how many of them count."""
    count, counted = contrast.replicates, contrast.change.n
    if contrast.pairing == "unpaired":
        return f"{processes(count)} {'alone' if contrast.metric is ALONE else 'apart'}"
    return f"{counted} of {count} processes" if count > 1 and counted < count else processes(count)


def noises(trials: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return the A/A noise of each cell of which it is known, by the cell's columns (``stats.aa_noise``)."""
    timed = arms(trials, SPEED, phase="floor").values()
    shares = {}
    for arm in timed:
        is_disturbed = [process in arm.disturbed for process in arm.gains]
        shares[arm.key[:PRECISION]] = stats.aa_noise([*arm.gains.values()], is_disturbed)
    return {cell: share for cell, share in shares.items() if share is not None}


def details(trials: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm of ``numbered`` trials was timed, by its number.

    Figures are medians over processes, counts are summed over them, and what ran is the first one's.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin((*MEASURED, "invalid"))]
    groups = rows.groupby(ARM, sort=False)
    table = groups[DIAGNOSTICS].median().join(groups["rounds"].sum())
    table["most_foreign_load_pct"] = groups["foreign_load_pct"].max()
    return table.join(groups[["compute_dtypes", "attention"]].first())


def without_unsupported(summary: pd.DataFrame) -> pd.DataFrame:
    """Leave out the rows that are ``unsupported`` in all that was tried, where the batch size has another precision.

    ``tables.diagnostics.not_measured`` says what they were.
    """
    lost = summary[MEASURES] == UNSUPPORTED
    whole = lost.any(axis=1) & (lost | summary[MEASURES].isna()).all(axis=1)
    others = (~whole).groupby([summary[name] for name in CELL], sort=False).transform("any")
    return summary[~(whole & others)]


# Batch sizes: the speedup at one batch next to that of each precision at its own best, and what fits.


def _in_common(table: pd.DataFrame) -> pd.Series:
    """Say of each row whether speeds were compared at its batch size on all devices on which the workload's were."""
    devices = table["where"].where(table["speedup"].notna())
    at_size, of_all = (
        devices.groupby([table[name] for name in names]).transform("nunique")
        for names in (["workload", "batch_size"], ["workload"])
    )
    return at_size == of_all


def reference_batch(rows: pd.DataFrame) -> int:
    """Choose the batch size that a subject is judged at.

    It is the largest that was trained with and has a speedup, else the largest at which all devices have one, else the
    largest that has one.
    """
    sizes = rows["batch_size"].to_numpy()
    compared, trained, timed = (rows[name].notna().to_numpy() for name in ("speedup", "train_status", "step_ms"))
    both = compared & np.isin(sizes, sizes[trained])
    for choice in (both, compared & rows["in_common"].to_numpy(), compared, trained, timed, np.ones_like(timed)):
        if choice.any():
            return int(sizes[choice].max())
    raise ValueError("a subject has at least one row")


def best_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each subject's and precision's row of the summary at the batch size of its highest throughput."""
    timed = rows[rows["step_ms"].notna() & rows["samples_per_s"].notna()]  # published rows have no steps
    best: pd.DataFrame = timed.loc[timed.groupby([*SUBJECT, "precision"], sort=False)["samples_per_s"].idxmax()]
    return best


def over(row: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> stats.Interval:
    """Return how many times as fast one row's steps are as another's, with its interval where there is one."""
    contrast = estimate(THROUGHPUT, row[THROUGHPUT.arm], other[THROUGHPUT.arm])
    assert contrast is not None  # throughput has nothing that both sides must agree in
    return contrast.gain
