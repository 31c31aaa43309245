"""Summary of trials: one row for each precision of a cell, with memory, speed and training side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.parity import ACCURACY, JUDGED, LOSS, QUALITIES
from bench.report.analysis.speed import ARM, IN_CELL, details, numbered, numbers, speeds, status_of
from bench.report.reading.labels import subjects
from bench.report.reading.load import KEY, SUBJECT, is_emulated
from bench.results.records import MEASURED
from bench.spec.generations import generation_rank
from bench.spec.precisions import BASELINE, precision_rank
from bench.stats import Values

IEEE_ERROR = 3e-5
"""An fp32 matrix product with a larger error than this was not computed in IEEE fp32."""
RESIDENT_RESOLUTION = 5 * 2**20
"""Resident peaks of two identical processes differ by up to this many bytes; on a CPU, less is no difference."""
ENERGY_FIGURES = ["energy_j_per_step", "energy_net_j_per_step", "mean_power_w", "idle_power_w"]
ROUNDED = ("tf32", "bf16")
"""Settings of the fp32 switches under which factors are rounded before they are multiplied."""
RENAMED = {"test_accuracy_pct": "accuracy_pct", "test_accuracy_fp32_pct": "accuracy_fp32_pct"}
FIGURES = ["time_per_epoch_s", "train_loss", "test_loss", "test_accuracy_pct", "test_accuracy_fp32_pct"]
FIGURES += ["data_wait_pct", "train_samples_per_s", "total_s", "time_to_accuracy_s", "checkpoint_bytes"]
FIGURES += ["checkpoint_16bit_bytes", "train_energy_j", "entropy_nats"]
ENTROPY = ["above_entropy", "above_entropy_low", "above_entropy_high"]
EPOCHS = ["epoch_speedup", "epoch_low", "epoch_high", "epoch_seeds"]


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each precision of each cell, ordered as tables show them.

    Beside the columns of ``KEY`` it has those of ``speeds``, ``details`` and ``trainings``, ``memory_status``,
    ``memory_bytes``, ``all_devices_bytes`` (the sum over devices that train together), ``memory_change`` (a share of
    fp32's, negative is less), ``matmul_error`` and ``ieee`` (whether fp32's products were IEEE; None where it was not
    probed), ``lost_speed`` and ``lost_train`` (how many trials did not count), ``numerics_status`` and
    ``inference_status``, and the names of ``labels.subjects``.
    """
    trials = numbered(trials)
    arms = trials.drop_duplicates(ARM).set_index(ARM)[[IN_CELL, *KEY]]
    table = arms.join([_memories(trials), speeds(trials), details(trials), energies(trials), trainings(trials)])
    table["matmul_error"] = trials.groupby(ARM, sort=False)["matmul_error"].max()
    lost = _lost(trials)
    for phase in ("numerics", "inference"):
        rows = trials[trials["phase"] == phase]
        table[f"{phase}_status"] = status_of(rows, rows["status"].isin(MEASURED))
    for phase in ("speed", "train"):
        table[f"lost_{phase}"] = lost[lost["phase"] == phase].groupby(ARM, sort=False).size()
    table = table.merge(subjects(trials), on=SUBJECT, how="left")
    table["ieee"] = _ieee(trials, table)
    fp32 = table.loc[table["precision"] == BASELINE].set_index(IN_CELL)["memory_bytes"]
    change = memory_change(table["memory_bytes"], table[IN_CELL].map(fp32), table["device_kind"])
    table["memory_change"] = change.where(table["precision"] != BASELINE)
    table["rank"] = table["precision"].map({name: precision_rank(name) for name in table["precision"].unique()})
    table["generation"] = table["architecture"].map(generation_rank)
    order = ["suite", "parameters", "techniques", "data", "generation", "architecture", "device", "run", "placement"]
    order += ["batch_size", "rank"]
    table = table.sort_values(order, kind="stable", ignore_index=True).drop(columns=IN_CELL)
    return table.copy()  # which defragments the columns


def _lost(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of speed and training that do not count, a row for each arm, process and seed.

    An arm that did not fit in memory beside others, and was then measured alone, has lost nothing.
    """
    rows = trials[trials["phase"].isin(("speed", "train"))]
    trial = [ARM, "phase", "replicate", "seed"]
    counted = rows["status"].isin(MEASURED)
    measured = counted.groupby([rows[name] for name in trial], dropna=False).transform("any")
    apart = rows["status"].eq("oom") & measured.astype(bool)
    return rows[~counted & ~apart].drop_duplicates(trial)


def energies(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of ``numbered`` trials that has an energy trial, by its number.

    ``energy_j_per_step`` is gross. ``energy_change`` is its change as a share of fp32's, negative is less; empty for
    fp32, and where the two were read from different sources. ``energy_status`` is the trial's status.
    """
    rows = trials[trials["phase"] == "energy"]
    usable = rows["status"].isin(MEASURED) & rows["energy_j_per_step"].gt(0)
    table = status_of(rows, usable).to_frame("energy_status")
    columns = [IN_CELL, "precision", "energy_source", *ENERGY_FIGURES]
    last = rows[usable].drop_duplicates(ARM, keep="last").set_index(ARM)[columns]
    table = table.join(last)
    alike = [IN_CELL, "energy_source"]
    fp32 = last.loc[last["precision"] == BASELINE, [*alike, "energy_j_per_step"]]
    baseline = table[alike].merge(fp32, on=alike, how="left")["energy_j_per_step"].set_axis(table.index)
    change = table["energy_j_per_step"] / baseline - 1
    table["energy_change"] = change.where(table["precision"] != BASELINE)
    table = table.drop(columns=[IN_CELL, "precision"])
    return table.astype(dict.fromkeys([*ENERGY_FIGURES, "energy_change"], float))


def memory_change(peak: pd.Series, fp32: pd.Series, kind: pd.Series) -> pd.Series:
    """Return each peak's change as a share of fp32's peak, NaN within the resolution; peaks are in bytes."""
    return (peak / fp32.where(fp32 > 0) - 1).where(told_apart(kind, peak, fp32))


def told_apart(kinds: pd.Series, one: pd.Series, other: pd.Series) -> pd.Series:
    """Return for each row whether two steady peaks, in bytes, differ by more than identical processes do."""
    return (kinds != "cpu") | ((one - other).abs() >= RESIDENT_RESOLUTION)


def _memories(trials: pd.DataFrame) -> pd.DataFrame:
    """Return each arm's steady peak (allocated on a GPU, resident on a CPU): its devices' largest, and their sum."""
    rows = trials[trials["phase"] == "memory"]
    peak = rows["peak_allocated_bytes"].fillna(rows["peak_resident_bytes"])
    usable = rows["status"].isin(MEASURED) & peak.notna()
    table = status_of(rows, usable).to_frame("memory_status")
    figures = rows[[ARM, "all_devices_bytes"]].assign(peak=peak)[usable].groupby(ARM, sort=False)
    table["memory_bytes"], table["all_devices_bytes"] = figures["peak"].max(), figures["all_devices_bytes"].max()
    return table


def _ieee(trials: pd.DataFrame, table: pd.DataFrame) -> pd.Series:
    """Return for each row whether its subject's fp32 was IEEE fp32, by the switches read back and the probed error."""
    fp32 = trials[trials["precision"] == BASELINE]
    switches = fp32[["fp32_matmul", "fp32_conv", "fp32_rnn"]].isin(ROUNDED).any(axis=1)
    rounded = switches | (fp32["matmul_error"] > IEEE_ERROR)
    probed = (fp32["fp32_matmul"] != "") | fp32["matmul_error"].notna()
    subject = pd.Series(numbers(pd.concat([fp32[SUBJECT], table[SUBJECT]]), SUBJECT))
    of_fp32, of_row = subject[: len(fp32)].set_axis(fp32.index), subject[len(fp32) :].set_axis(table.index)
    ieee = (~rounded[probed]).groupby(of_fp32[probed], sort=False).all()
    by_row = of_row.map(ieee)
    return by_row.astype(object).where(by_row.notna(), None)


def trainings(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of ``numbered`` trials that was trained, by its number.

    Figures are means over the seeds that finished; ``time_to_accuracy_s`` is the mean over those that reached
    ``target_accuracy_pct``, and ``reached`` is their number. ``diverged`` counts the seeds that diverged where fp32 did
    not, ``fp32_diverged`` those in which fp32 did. ``token_loss`` is the mean test loss of tokens,
    and ``perplexity`` is e to its power.
    The columns of ``_deltas``, ``_epoch_speedups`` and ``_above_entropy`` are joined.
    """
    rows = trials[trials["phase"] == "train"]
    trained = rows["time_per_epoch_s"].notna() | is_emulated(rows["precision"])  # those have no times
    usable = rows["status"].isin(MEASURED) & trained
    table = status_of(rows, usable).to_frame("train_status")
    done = rows[usable].groupby(ARM, sort=False)
    table = table.join(done[FIGURES].mean().rename(columns=RENAMED))
    table["epochs"] = done["epochs"].max()
    table["data_storage"] = done["data_storage"].first()
    table["regression"] = done["regression"].first() == "yes"
    table["accuracy_sd"] = done["test_accuracy_pct"].std()
    table["seeds"] = done.size()
    table["target_accuracy_pct"] = done["target_accuracy_pct"].max()
    table["reached"] = done["time_to_accuracy_s"].count()
    table = table.join(_diverged(rows)).fillna({"diverged": 0, "fp32_diverged": 0})
    deltas = _deltas(rows[usable]).reindex(table.index)
    deltas.loc[table["diverged"] > 0, "parity"] = "diverged"  # also where no seed is left to compare
    table["token_loss"] = table["test_loss"].where(table["accuracy_pct"].isna()).astype(float)
    table["perplexity"] = np.exp(table["token_loss"])
    others = [_epoch_speedups(rows[usable]), _above_entropy(rows[usable])]
    return table.join([deltas, *(other.reindex(table.index) for other in others)])


def _paired(done: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Pair a figure of each arm and seed with fp32's of that seed, suffixed ``_fp32``; drop seeds that lack either."""
    rows = done.loc[done[figure].notna(), [ARM, IN_CELL, "precision", "seed", figure]]
    baseline = rows.loc[rows["precision"] == BASELINE, [IN_CELL, "seed", figure]]
    return rows[rows["precision"] != BASELINE].merge(baseline, on=[IN_CELL, "seed"], suffixes=("", "_fp32"))


def _over_seeds(
    pairs: pd.DataFrame, differences: pd.Series, columns: list[str], judge: Callable[[Values], Sequence[object]]
) -> pd.DataFrame:
    """Apply ``judge`` to each arm's differences over seeds; return its values as ``columns``, by its number."""
    groups = differences.groupby(pairs[ARM], sort=False)
    judgements = {arm: judge(group.to_numpy(dtype=np.float64)) for arm, group in groups}
    return pd.DataFrame(list(judgements.values()), pd.Index(list(judgements), dtype="int64"), columns)


def _epoch_speedups(done: pd.DataFrame) -> pd.DataFrame:
    """Return how much faster than fp32 each arm's epochs are, by the arm's number.

    ``epoch_speedup`` is fp32's time per epoch over the arm's, the geometric mean over the seeds that both finished;
    ``epoch_low`` and ``epoch_high`` are Student's 95 % interval on the logarithms, empty with one seed, and
    ``epoch_seeds`` is how many seeds.
    """

    def speedup(logs: Values) -> Sequence[object]:
        interval = stats.student_interval(logs).exp()
        return interval.center, interval.low, interval.high, interval.n

    pairs = _paired(done, "time_per_epoch_s")
    logs = (pairs["time_per_epoch_s_fp32"] / pairs["time_per_epoch_s"]).map(math.log)
    return _over_seeds(pairs, logs, EPOCHS, speedup).astype(float)


def _above_entropy(done: pd.DataFrame) -> pd.DataFrame:
    """Return how far each arm's test loss lies above the data's entropy rate, where that is known, by its number.

    ``above_entropy`` is the mean over seeds in nats a token, with Student's 95 % interval.
    """
    rows = done[done["entropy_nats"].notna() & done["test_loss"].notna()]

    def above(differences: Values) -> Sequence[object]:
        interval = stats.student_interval(differences)
        return interval.center, interval.low, interval.high

    return _over_seeds(rows, rows["test_loss"] - rows["entropy_nats"], ENTROPY, above).astype(float)


def _diverged(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the seeds in which each arm diverged but fp32 did not, and those in which fp32 diverged.

    In fp32's own row both are the seeds in which it diverged.
    """
    lost = rows.loc[rows["status"] == "nonfinite", [ARM, IN_CELL, "precision", "seed"]].drop_duplicates()
    fp32 = lost.loc[lost["precision"] == BASELINE, [IN_CELL, "seed"]].assign(recipe=True)
    own = lost.merge(fp32, on=[IN_CELL, "seed"], how="left")
    own = own[own["recipe"].isna() | (own["precision"] == BASELINE)]
    cells = rows.drop_duplicates(ARM).set_index(ARM)[IN_CELL]
    by_cell = fp32.groupby(IN_CELL).size()
    return pd.DataFrame({"fp32_diverged": cells.map(by_cell), "diverged": own.groupby(ARM).size()}, index=cells.index)


def _deltas(done: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm differs from fp32 in accuracy, or in the loss of tokens, by its number.

    It has the columns of each quality, which are the mean of arm − fp32 over the seeds that both finished and the ends
    of its 90 % interval, and those of ``JUDGED``.
    """
    classified = done.groupby(ARM)["test_accuracy_pct"].transform("count") > 0
    judged = []
    for quality, own in ((ACCURACY, done[classified]), (LOSS, done[~classified])):
        pairs = _paired(own, quality.figure)
        deltas = pairs[quality.figure] - pairs[f"{quality.figure}_fp32"]
        table = _over_seeds(pairs, deltas, [*quality.columns, *JUDGED], quality.judge)
        judged.append(table.astype(dict.fromkeys(quality.columns, float)))
    columns = [name for quality in QUALITIES for name in quality.columns]
    return pd.concat([one for one in judged if len(one)] or judged).reindex(columns=[*columns, *JUDGED])
