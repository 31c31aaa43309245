"""Summary of trials: one row for each precision of a cell, with the figures of all phases side by side."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis import alone as each_alone
from bench.report.analysis.changes import Contrast, contrasts, estimate, intervals
from bench.report.analysis.doubts import doubts
from bench.report.analysis.frame import ARM, IN_CELL, PRECISION, Arm, arms, numbered
from bench.report.analysis.judge import judge_speedups, parity
from bench.report.format import known, number, processes, records
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, KEY, SUBJECT
from bench.results.records import MEASURED
from bench.spec.generations import generation_rank
from bench.spec.metric import Metric
from bench.spec.metrics import METRICS, SPEED, THROUGHPUT, learned
from bench.spec.phase import Phase
from bench.spec.phases import MEASURING
from bench.spec.precisions import BASELINE, find_precision, precision_rank, strayed

IEEE_ERROR = 3e-5
"""An fp32 matrix product with a larger error than this was not computed in IEEE fp32."""
ROUNDED = ("tf32", "bf16")
"""Settings of the fp32 switches under which factors are rounded before they are multiplied."""
MEASURES = ["speed_status", "memory_status", "train_status"]
"""Columns of a precision's status; the first that is set counts."""
UNSUPPORTED = "unsupported"
ORDER = ["suite", "parameters", "techniques", "data", "generation", "architecture", "device", "run", "placement"]
ORDER += ["batch_size", "rank"]
"""The columns by which tables are ordered."""


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each precision of each cell, ordered as tables show them.

    As well as the columns of ``KEY`` and the names of ``labels.subjects`` it has

    - of each phase its status, how many of its trials were lost, and the columns of ``Phase.summarised``,
    - of each metric its figure, its change from fp32 with the interval, and what each arm measured (``Metric.arm``),
    - the columns of ``_speeds``, ``_diverged`` and ``_parities``,
    - ``other_types`` and ``fp32_strayed``, that of the fp32 that it is compared with,
    - ``stalled``, and ``doubts`` about all of it.
    """
    trials = numbered(trials)
    measured = {metric: arms(trials, metric) for metric in METRICS.values()}
    changes = {metric: contrasts(metric, by_arm) for metric, by_arm in measured.items()}
    table = trials.drop_duplicates(ARM).set_index(ARM)[[IN_CELL, *KEY, "missing_trials"]]
    parts: list[Any] = [_of_phase(trials, phase) for phase in MEASURING.values()]
    parts += [_of_metric(metric, measured[metric], changes[metric]) for metric in METRICS.values()]
    parts += [_speeds(trials, changes[SPEED], _alone(changes)), _parities(changes), _diverged(trials)]
    table = table.join(parts)
    table.loc[table["diverged"] > 0, "accuracy_verdict"] = "diverged"  # also where no seed is left to compare
    table.loc[table["data"] == "script", "samples_per_s"] = None  # a script's batch size is its own
    of_arms = trials.groupby(ARM, sort=False)
    table = table.copy()  # defragments it
    lost = [f"lost_{name}" for name in MEASURING]
    table[lost] = table[lost].fillna(0)
    table["matmul_error"] = of_arms["matmul_error"].max()
    is_wide = (table["speedup_high"] / table["speedup_low"]) ** 0.5 - 1 > of_arms["target_ci"].max()
    table["speed_status"] = table["speed_status"].mask(is_wide & table["speed_status"].isin(MEASURED), "unconverged")
    table["perplexity"] = np.exp(table["test_loss_nats"])
    table["above_entropy"] = table["test_loss"] - table["entropy_nats"]
    table["other_types"] = other_types(trials).groupby(trials[ARM], sort=False).first()
    table["stalled"] = stalled(trials)
    table = table.merge(subjects(trials), on=SUBJECT, how="left")
    of_fp32 = table["other_types"].where(table["precision"] == BASELINE)
    table["fp32_strayed"] = of_fp32.groupby([table[name] for name in SUBJECT]).transform("first")
    table["in_common"] = _in_common(table)
    table["rank"] = table["precision"].map({name: precision_rank(name) for name in table["precision"].unique()})
    table["generation"] = table["architecture"].map(generation_rank)
    table["doubts"] = [doubts(row) for row in records(table)]
    table = table.sort_values(ORDER, kind="stable", ignore_index=True).drop(columns=IN_CELL)
    return table.copy()  # defragments it


def _of_phase(trials: pd.DataFrame, phase: Phase) -> pd.DataFrame:
    """Return what a phase says of each arm of ``numbered`` trials, by its number."""
    rows = trials[trials["phase"] == phase.name]
    is_measured = rows["status"].isin(MEASURED)
    table = status_of(rows).to_frame(f"{phase.name}_status")
    lost = _lost(rows).groupby(ARM).size()
    table[f"lost_{phase.name}"] = lost.reindex(table.index, fill_value=0)
    return table.join(rows[is_measured].groupby(ARM, sort=False).agg(dict(phase.summarised)))


def status_of(rows: pd.DataFrame) -> pd.Series:
    """Return one word for each arm of a phase's rows, by its number.

    Where anything was measured it is ``ok``, or ``unconverged`` if any was; otherwise the last trial's own word.
    """
    rank = rows["status"].map({"ok": 1, "unconverged": 2}).fillna(0)
    ranked = pd.DataFrame({ARM: rows[ARM], "status": rows["status"], "rank": rank})
    return ranked.sort_values("rank", kind="stable").groupby(ARM, sort=False)["status"].last()


def _lost(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a phase that do not count, one for each arm, process and seed.

    An arm that did not fit in memory together with others, and was then measured alone, has lost nothing.
    """
    trial = [ARM, "replicate", "seed"]
    is_measured = rows["status"].isin(MEASURED)
    later = is_measured.groupby([rows[name] for name in trial], dropna=False).transform("any").astype(bool)
    is_lost = ~is_measured & ~(rows["status"].eq("oom") & later)
    return rows[is_lost].drop_duplicates(trial)


def _of_metric(metric: Metric, measured: Mapping[int, Arm], changes: Mapping[int, Contrast]) -> pd.DataFrame:
    """Return each arm's figure of a metric, its change from fp32 with the interval, and the arm, by its number."""
    figures = {number: arm.figure(metric) for number, arm in measured.items()}
    table = pd.DataFrame({metric.figure: pd.Series(figures, dtype=float)})
    table[metric.arm] = pd.Series(dict(measured), dtype=object)
    if metric not in (SPEED, THROUGHPUT):  # the speedups are judged together, see ``_speeds``
        table = table.join(intervals(changes, metric.changes, attrgetter("reported")), how="outer")
    return table


def _parities(changes: Mapping[Metric, Mapping[int, Contrast]]) -> pd.DataFrame:
    """Return the word for what each arm has learned, and how many seeds it rests on, by its number."""
    judged: dict[int, Contrast] = {}
    for metric in reversed(learned()):  # the first one counts
        judged |= changes[metric]
    words = {number: parity(contrast) for number, contrast in judged.items()}
    seeds = {number: contrast.change.n for number, contrast in judged.items()}
    table = pd.DataFrame({"accuracy_verdict": pd.Series(words, dtype=object)})
    table["accuracy_change_seeds"] = pd.Series(seeds, dtype=float)
    return table


def _alone(changes: Mapping[Metric, Mapping[int, Contrast]]) -> Mapping[int, Contrast]:
    """Return the changes of the metric that may count in place of the step time; none without such a metric."""
    return next((of_metric for metric, of_metric in changes.items() if metric.instead_of == SPEED.name), {})


def _diverged(trials: pd.DataFrame) -> pd.DataFrame:
    """Count the seeds with which each arm was trained, those in which it diverged, and those in which fp32 did.

    ``diverged`` leaves out the seeds in which fp32 diverged, too, but for fp32 itself; ``diverged_seeds`` has them all.
    """
    rows = trials[trials["phase"] == "train"]
    lost: dict[Any, set[Any]] = {}
    of_fp32: dict[Any, set[Any]] = {}
    cells = {}
    names = [ARM, IN_CELL, "precision", "status", "seed"]
    for arm, cell, precision, status, seed in rows[names].itertuples(index=False):
        cells[arm] = cell
        if status == "nonfinite":
            lost.setdefault(arm, set()).add(seed)
            if precision == BASELINE:
                of_fp32.setdefault(cell, set()).add(seed)
    counts = []
    baselines = set(rows.loc[rows["precision"] == BASELINE, ARM])
    for arm, cell in cells.items():
        seeds, fp32 = lost.get(arm, set()), of_fp32.get(cell, set())
        own = seeds if arm in baselines else seeds - fp32
        counts.append((arm, len(own), len(fp32), frozenset(seeds)))
    names = [ARM, "diverged", "fp32_diverged", "diverged_seeds"]
    table = pd.DataFrame(counts, columns=names).astype({ARM: "int64"}).set_index(ARM)
    done = rows[rows["status"].isin(MEASURED)].groupby(ARM)
    table["seeds"] = done.size()
    table["accuracy_sd_points"] = done["test_accuracy_pct"].std()
    table["reached"] = done["time_to_accuracy_s"].count()
    return table


def _speeds(trials: pd.DataFrame, changes: Mapping[int, Contrast], alone: Mapping[int, Contrast]) -> pd.DataFrame:
    """Return one row for each arm whose speed was tried, by its number.

    ``speedup`` has the interval of its contrast with fp32, ``speed_verdict`` its word, and ``measured_in`` says over
    which processes, ``disturbed`` whether all of these were. ``noise_ratio`` is that of ``noises``, empty where it was
    not measured, and ``power_capped`` whether the power limit held the clock down, which the precisions then shared.
    Where the speedup alone counts (``each_alone.counts``), these are of it, and ``IN_TURNS`` is filled; without one a
    verdict at the power limit is FASTER only beyond ``judge.SHARED_CLOCK``.

    Args:
        trials: rows from ``numbered``.
        changes: each precision's step time against fp32's, by the arm's number.
        alone: its throughput alone against fp32's.
    """
    rows = trials[trials["phase"] == SPEED.phase]
    noise = noises(trials)
    cells = rows.drop_duplicates(ARM).set_index(ARM)[CELL]
    of_arms = {number: noise.get(tuple(cell)) for number, *cell in cells.itertuples(name=None)}
    capped = rows["power_capped"].eq("yes").groupby(rows[ARM], sort=False).any()
    table = pd.DataFrame({"noise_ratio": pd.Series(of_arms, dtype=float), "power_capped": capped})
    turns, counting, judged = {}, {}, []
    for arm, contrast in changes.items():
        in_turns = replace(contrast, noise=of_arms[arm], shares_clock=bool(capped[arm]))
        if each_alone.counts(in_turns, alone.get(arm)):
            turns[arm], counting[arm] = in_turns, alone[arm]
            judged.append(each_alone.judged(in_turns, alone[arm]))
        else:
            counting[arm] = in_turns
            judged.append(in_turns)
    table = table.join(intervals(counting, SPEED.changes, attrgetter("gain")))
    table = table.join(intervals(turns, each_alone.IN_TURNS, attrgetter("gain")))
    words = {
        "speed_verdict": dict(zip(counting, judge_speedups(judged), strict=True)),
        "measured_in": {number: measured_in(contrast) for number, contrast in counting.items()},
        "disturbed": {number: contrast.is_disturbed for number, contrast in changes.items()},
    }
    for name, of_arm in words.items():
        table[name] = pd.Series(of_arm, dtype=object)
    table["timed_processes"] = rows[rows["status"].isin(MEASURED)].groupby(ARM).size()
    return table


def measured_in(contrast: Contrast) -> str:
    """Say over which processes a contrast is, and how many of them count."""
    count, counted = contrast.replicates, contrast.change.n
    if contrast.pairing == "unpaired":
        return f"{processes(count)} {'alone' if contrast.metric.instead_of else 'apart'}"
    return f"{counted} of {count} processes" if count > 1 and counted < count else processes(count)


def noises(trials: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return the A/A noise of each cell of which it is known, by the cell's columns (``stats.aa_noise``)."""
    shares = {}
    for arm in arms(trials, SPEED, phase="floor").values():
        is_disturbed = [process in arm.disturbed for process in arm.gains]
        share = stats.aa_noise([*arm.gains.values()], is_disturbed)
        if share is not None:
            shares[arm.key[:PRECISION]] = share
    return shares


def stalled(trials: pd.DataFrame) -> pd.Series:
    """Return the losses of each arm that does not learn where fp32 does, in words, by its number.

    Fp32 learns if its loss falls by more than its last losses differ between seeds, with one seed or two, which may
    agree by chance, by a tenth as well. An arm does not if its own falls by less than a tenth of that. Where an arm was
    trained, epochs count, else the steps of the phase that recorded them; the share of its gradients that are zero is
    the latter's.
    """
    rows = trials[trials["status"].isin(MEASURED) & trials["first_loss"].notna()]
    zeros: Mapping[Any, float] = {}
    if "zero_gradients_pct" in trials:
        zeros = trials.groupby(ARM)["zero_gradients_pct"].mean().to_dict()
    words: dict[Any, str] = {}
    is_training = rows["phase"] == "train"
    for part in (rows[~is_training], rows[is_training]):  # the last counts
        of_arms = part.groupby([IN_CELL, ARM, "precision"])
        courses = of_arms[["first_loss", "last_loss"]].mean()
        losses = of_arms["last_loss"]
        courses["fall"] = courses["first_loss"] - courses["last_loss"]
        courses["spread"] = losses.max() - losses.min()
        few = np.maximum(courses["spread"], 0.1 * courses["first_loss"].abs())
        courses["spread"] = courses["spread"].where(losses.size() >= 3, few)
        by_arm = records(courses.reset_index())
        baselines = {row[IN_CELL]: row for row in by_arm if row["precision"] == BASELINE}
        for row in by_arm:
            words.pop(row[ARM], None)
            fp32 = baselines.get(row[IN_CELL], row)
            if fp32["fall"] > fp32["spread"] and row["fall"] < 0.1 * fp32["fall"]:
                words[row[ARM]] = _losses(row, fp32, zeros.get(row[ARM], math.nan))
    return pd.Series(words, dtype=object)


def _losses(row: Mapping[Hashable, Any], fp32: Mapping[Hashable, Any], zero_pct: float) -> str:
    """Write how little the loss of an arm falls next to fp32's, and how many of its gradients are zero."""
    own, of_fp32 = (f"{number(each['first_loss'], 3)} → {number(each['last_loss'], 3)}" for each in (row, fp32))
    text = f"loss {own}, {BASELINE} {of_fp32}"
    if not known(zero_pct):
        return text
    precision = find_precision(row["precision"])
    where = " in float16" if precision and precision.autocast == "float16" else ""
    return f"{text}; {number(zero_pct, 2)} % of its gradients are zero{where}"


def other_types(trials: pd.DataFrame) -> pd.Series:
    """Return for each trial's row which products ran in another type than its precision's, in words; None without any.

    They are those that a step was seen to compute, and of fp32 all where its switches or a probed product say so.
    """
    seen = trials[["precision", "compute_dtypes", "other_modules"]].itertuples(index=False)
    words = pd.Series([strayed(*row) or None for row in seen], trials.index, dtype=object)
    switched = trials[["fp32_matmul", "fp32_conv", "fp32_rnn"]].isin(ROUNDED).any(axis=1)
    rounded = (trials["precision"] == BASELINE) & (switched | (trials["matmul_error"] > IEEE_ERROR))
    return words.mask(words.isna() & rounded, "rounded its products to TF32 or less")


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
