"""What the rows and files of a run say of each other: figures of trials.csv that others do not bear out.

A row that cannot be true is refused when it is read (``csv_file``). Where two rows or two files disagree, nobody can
tell which of them was edited, so the report says it, with the line of trials.csv and both figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.report.format import records
from bench.results.csv_file import PAIR, line_of
from bench.results.records import MEASURED
from bench.results.relations import DISAGREE
from bench.spec.phases import PHASES
from bench.spec.precisions import BASELINE, PRECISIONS
from bench.stats import count_outliers, rounds_interval

UNKNOWN = "unknown"
FLOOR, AGAIN = "floor", " again"
"""The phase that times fp32 against itself, and what the name of the second of the two ends in."""
BLOCKS_A_ROUND = 2
"""Blocks of each arm in an ABBA round."""
NEAR_BYTES, TIMES = 64 * 2**20, 2.0
"""On a CPU the peak of the first step, that of later steps and the tensors' own are not the same, but no further apart
than by this many bytes or by this factor."""
IN_TRIAL = ("config", "cell", "suite", "placement", "batch_size", "data", "phase", "replicate", "seed")
IN_TIMED = ("rounds", "discarded_rounds", "foreign_load_pct", "steps_per_epoch")
"""What all rows of a trial have in common: what was asked, and what was measured once for all its arms."""
OF_MODEL = ("model_bytes", "checkpoint_bytes", "checkpoint_16bit_bytes", "parameter_bytes")
"""What does not depend on the batch, nor on chance."""
MODEL = ["suite", "parameters_json", "techniques", "data", "weights"]
NAMED = {
    "batch_size": re.compile(rf"-b(\d+)-(?:{'|'.join(PHASES)})(?:-|$)"),
    "replicate": re.compile(r"-r(\d+)$"),
    "seed": re.compile(r"-s(\d+)$"),
}
"""What the name of a trial repeats of its row (``Trial.id``)."""
LAST = ("train_loss", "test_loss", "test_accuracy_pct", "test_loss_fp32", "test_accuracy_fp32_pct")
"""Figures of a training that are its last epoch's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contradiction:
    """A figure of a row, and what something else says it is."""

    row: Any
    """Place of the row in its file."""
    column: str
    has: Any
    other: Any
    """What the figure would be."""
    source: str
    """Where that is from."""


def sentences(path: Path, rows: pd.DataFrame, found: Sequence[Contradiction]) -> list[str]:
    """Return a sentence for each source: its first contradiction, and how many more there are.

    Args:
        path: the file that has the figures.
        rows: its rows, their index being their place in the file.
        found: the contradictions.
    """
    texts = []
    for source in dict.fromkeys(one.source for one in found):
        own = [one for one in found if one.source == source]
        first, others = own[0], len(own) - 1
        row = rows.loc[first.row]
        more = f", and {others} more figure{' is' if others == 1 else 's are'} like it" if others else ""
        texts.append(
            f"{path.name}, line {line_of(path, first.row)}: {first.column} of {row['trial']} in {row['precision']} is "
            f"{_shown(first.has)}, but {_shown(first.other)} {source}{more}. One of the two was edited, or lines were "
            "lost: do not trust either."
        )
    return texts


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float | int | np.number) else f"'{value}'"


def among_rows(trials: pd.DataFrame) -> Iterator[Contradiction]:
    """Yield what rows of trials.csv say against each other, and against the trials' names."""
    yield from _against_names(trials)
    yield from _unequal(trials, ["trial"], IN_TRIAL, "in another row of its trial")
    measured = trials[trials["status"].isin(MEASURED)]
    timed = measured[measured["phase"].isin(("speed", "ladder"))]
    yield from _unequal(timed, ["trial"], IN_TIMED, "in another row of its trial")
    weights = measured["arm_precision"].map(_weights)
    models = measured.assign(weights=weights)[weights != UNKNOWN]
    yield from _unequal(models, MODEL, OF_MODEL, "in other rows of the same model")
    yield from _not_tried(measured)
    yield from _unequal(measured, ["device", "fp32_matmul"], ("matmul_error",), "in other rows of the same device")
    yield from _far_apart(measured)


def _weights(precision: str) -> str:
    """Return the type of a precision's weights; ``UNKNOWN`` of those that more than the type tells apart."""
    known = PRECISIONS.get(precision.partition(":")[0])
    return UNKNOWN if known is None or known.master or known.conversion else known.weights or "float32"


def _not_tried(trials: pd.DataFrame) -> Iterator[Contradiction]:
    """Yield largest batches that the search does not say to fit."""
    for row, size, detail in trials.loc[trials["phase"] == "fit", ["batch_size", "detail"]].itertuples():
        fitting = [int(word) for word in re.findall(r"(\d+) fits", detail)]
        if fitting and size not in fitting:
            yield Contradiction(
                row=row, column="batch_size", has=size, other=max(fitting), source="in what its search tried"
            )


def _against_names(trials: pd.DataFrame) -> Iterator[Contradiction]:
    for column, pattern in NAMED.items():
        said = trials["trial"].str.extract(pattern, expand=False).astype(float)
        wrong = said.notna() & trials[column].notna() & (said != trials[column])
        for row in trials.index[wrong]:
            yield Contradiction(
                row=row, column=column, has=trials.at[row, column], other=said[row], source="in its trial's name"
            )


def _unequal(rows: pd.DataFrame, key: list[str], columns: Sequence[str], source: str) -> Iterator[Contradiction]:
    """Yield rows whose value is not that of most rows of equal ``key``; where two differ, of the later."""
    for column in columns:
        there = rows[rows[column].notna() & (rows[column] != "")]
        groups = there.groupby(key, sort=False, observed=True)[column]
        if not len(there):
            continue
        if there[column].dtype == float:
            spread = groups.transform("max") - groups.transform("min")
            odd = there[spread > DISAGREE * groups.transform("max").abs()]
        else:
            odd = there[groups.transform("nunique") > 1]
        for _, own in odd.groupby(key, sort=False, observed=True)[column]:
            usual = own.mode(dropna=False).iloc[0] if own.nunique() < len(own) else own.iloc[0]
            for row, value in own.items():
                close = not isinstance(value, str) and abs(value - usual) <= DISAGREE * abs(usual)
                if value != usual and not close:
                    yield Contradiction(row=row, column=column, has=value, other=usual, source=source)


def _far_apart(trials: pd.DataFrame) -> Iterator[Contradiction]:
    """Yield peaks on a CPU that are far from the first step's, or far below what tensors alone held."""
    steady, first, tracked = (
        trials[name].to_numpy() for name in ("peak_resident_bytes", "first_peak_bytes", "tracked_peak_bytes")
    )
    for other, said in ((first, "in the first step"), (tracked, "in tensors alone")):
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.abs(steady - other) > NEAR_BYTES
            times = np.maximum(steady / other, other / steady) if other is first else other / steady
        for at in np.flatnonzero(apart & (times > TIMES)):
            row = trials.index[int(at)]
            yield Contradiction(row=row, column="peak_resident_bytes", has=steady[at], other=other[at], source=said)


def against_run(trials: pd.DataFrame, info: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Yield what run.json says against rows: of the plan, and of what was asked of trainings."""
    planned = {one["trial"]: one for one in info.get("planned") or ()}
    source = "in run.json's plan"
    rows = trials[trials["trial"].isin(planned)]
    for row, *values in rows[["trial", "phase", "cell", "replicate", "seed"]].itertuples():
        for column, value in zip(("phase", "cell", "replicate", "seed"), values[1:], strict=True):
            said = planned[values[0]][column]
            if value != said and not pd.isna(value):
                yield Contradiction(row=row, column=column, has=value, other=said, source=source)
    request = info.get("request") or {}
    trained = trials[(trials["phase"] == "train") & trials["status"].isin(MEASURED)]
    for column, option in (("epochs", "epochs"), ("target_accuracy_pct", "target_accuracy_pct")):
        if (said := request.get(option)) is not None:
            for row in trained.index[trained[column].notna() & (trained[column] != said)]:
                yield Contradiction(
                    row=row, column=column, has=trained.at[row, column], other=said, source="were asked in run.json"
                )


def against_epochs(trials: pd.DataFrame, epochs: pd.DataFrame) -> Iterator[Contradiction]:
    """Yield figures of trainings that their epochs do not give.

    Args:
        trials: a run's rows of trials.csv.
        epochs: its rows of epochs.csv, each epoch once.
    """
    rows = trials[(trials["phase"] == "train") & trials["epochs"].notna()]
    ordered = epochs.sort_values("epoch", kind="stable")
    groups = ordered.fillna({"test_s": 0.0}).groupby(PAIR, sort=False)
    sums = groups[["train_s", "test_s", "samples", "data_wait_s"]].sum()
    there = groups.size().rename("epochs").to_frame()
    there["time_per_epoch_s"] = groups["train_s"].median()
    there["total_s"] = sums["train_s"] + sums["test_s"]
    there["train_samples_per_s"] = sums["samples"] / sums["train_s"]
    there["data_wait_pct"] = 100 * sums["data_wait_s"] / sums["train_s"]
    there["train_energy_j"] = groups["energy_j"].sum(min_count=1).where(groups["energy_j"].count() == there["epochs"])
    there = there.join(ordered.drop_duplicates(PAIR, keep="last").set_index(PAIR)[list(LAST)])
    targets = rows.set_index(PAIR)["target_accuracy_pct"].reindex(pd.MultiIndex.from_frame(ordered[PAIR])).to_numpy()
    reached = ordered[ordered["test_accuracy_pct"].to_numpy() >= targets].drop_duplicates(PAIR)
    there["time_to_accuracy_s"] = reached.set_index(PAIR)["elapsed_s"]
    there = there.reindex(pd.MultiIndex.from_frame(rows[PAIR])).fillna({"epochs": 0})
    trained = there["epochs"].to_numpy() > 0
    for column in there:
        has, other = rows[column].to_numpy(), there[column].to_numpy()
        with np.errstate(invalid="ignore"):
            wrong = np.abs(has - other) > DISAGREE * np.abs(other)
        wrong |= np.isnan(has) & ~np.isnan(other)
        for at in np.flatnonzero(wrong & (trained if column != "epochs" else True)):
            yield Contradiction(
                row=rows.index[int(at)], column=str(column), has=has[at], other=other[at], source="by epochs.csv"
            )


def among_epochs(epochs: pd.DataFrame) -> Iterator[Contradiction]:
    """Yield what rows of epochs.csv say against each other: times add up, samples are the same."""
    yield from _unequal(epochs, PAIR, ("samples", "seed"), "in another epoch of its training")
    ordered = epochs.sort_values([*PAIR, "epoch"], kind="stable")
    before = ordered.groupby(PAIR, sort=False)[["elapsed_s", "epoch"]].shift()
    expected = before["elapsed_s"].fillna(0.0) + ordered["train_s"]
    follows = ordered["epoch"] == before["epoch"].fillna(0.0) + 1
    wrong = follows & ((ordered["elapsed_s"] - expected).abs() > DISAGREE * expected)
    for row in ordered.index[wrong]:
        yield Contradiction(
            row=row,
            column="elapsed_s",
            has=ordered.at[row, "elapsed_s"],
            other=expected[row],
            source="by the train_s of its epochs",
        )


def with_blocks(trials: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of trials that have blocks, each under the name that its blocks have.

    Those of the A/A noise are no part of a report; where they are not there, nothing is missed.
    """
    rows = trials[
        trials["phase"].isin((FLOOR, *(name for name, phase in PHASES.items() if phase.file == "blocks.csv")))
    ]
    rows = rows[(rows["phase"] != FLOOR) | rows["trial"].isin(blocks["trial"].cat.categories)]
    return rows.assign(precision=rows["precision"].mask(rows["phase"] == FLOOR, rows["precision"] + AGAIN))


def lost_blocks(path: Path, trials: pd.DataFrame, blocks: pd.DataFrame) -> str:
    """Warn, in one sentence, of speeds that were not made from the blocks: lines lost, added or edited.

    Args:
        path: trials.csv.
        trials: ``with_blocks`` of a run's rows, each trial and precision once.
        blocks: its rows of blocks.csv, each block once, words as categories.
    """
    timed = trials[trials["status"].isin(MEASURED) & trials["rounds"].gt(0) & trials["step_ms"].notna()]
    steps_ms = (blocks["time_ms"] / blocks["steps"]).where(blocks["discarded"].eq("").to_numpy())
    by_arm = steps_ms.groupby([blocks[name] for name in PAIR], observed=True, sort=False)
    there = by_arm.agg(["size", "count", "median"]).rename_axis(PAIR)
    arms = (
        timed.set_index(PAIR)[["rounds", "discarded_rounds", "step_ms"]].assign(row=timed.index.to_numpy()).join(there)
    )
    arms = arms.fillna({"size": 0, "count": 0, "discarded_rounds": 0})
    arms["counted"] = BLOCKS_A_ROUND * arms["rounds"]
    arms["discarded"] = BLOCKS_A_ROUND * arms["discarded_rounds"]
    arms["complete"] = (arms["size"] == arms["counted"] + arms["discarded"]) & (arms["count"] == arms["counted"])
    wrong = arms[~arms["complete"] | ((arms["median"] / arms["step_ms"] - 1).abs() > DISAGREE)]
    if wrong.empty:
        return ""
    first = records(wrong.reset_index())[0]
    expected = f"{first['counted']:.0f} blocks that count and {first['discarded']:.0f} that do not"
    found = f"{first['count']:.0f} and {first['size'] - first['count']:.0f}"
    if first["complete"]:
        expected, found = f"a step of {first['step_ms']:.4g} ms", f"a median of {first['median']:.4g} ms"
    others = len(wrong) - 1
    more = f", and {others} more {'row is' if others == 1 else 'rows are'} like it" if others else ""
    return (
        f"blocks.csv is not what trials.csv was made from: of {first['trial']} in {first['precision']} "
        f"trials.csv (line {line_of(path, int(first['row']))}) has {expected}, blocks.csv has {found}{more}. "
        "Lines of one of the two were lost, added or edited."
    )


def against_blocks(trials: pd.DataFrame, blocks: pd.DataFrame) -> Iterator[Contradiction]:
    """Yield figures of timed rows that their blocks do not give; ``lost_blocks`` says which lack blocks.

    Args:
        trials: ``with_blocks`` of a run's rows, each trial and precision once.
        blocks: its rows of blocks.csv, each block once, words as categories.
    """
    timed = trials[trials["status"].isin(MEASURED) & trials["rounds"].gt(0) & trials["step_ms"].notna()]
    codes = [blocks[name].cat.codes.to_numpy() for name in PAIR]
    names = [dict(zip(blocks[name].cat.categories, range(len(blocks)), strict=False)) for name in PAIR]
    steps = pd.DataFrame({"steps": blocks["steps"], "skipped_steps": blocks["skipped_steps"]}).groupby(codes)
    most, skipped = steps["steps"].max(), steps["skipped_steps"].sum()
    logs = _round_logs(blocks, codes)
    for row in records(timed.assign(row=timed.index)):
        arm = tuple(of.get(row[name], -1) for name, of in zip(PAIR, names, strict=True))
        if arm not in logs:
            continue
        expected = {"block_steps": most[arm], "skipped_steps": skipped[arm]}
        own, base = logs[arm], logs.get((arm[0], names[1].get(BASELINE, -1)))
        if base is not None and len(base) == len(own) == row["rounds"]:
            ratios = base - own if row["speedup"] == row["speedup"] else own
            expected["outlier_rounds"] = count_outliers(ratios)
            if row["speedup"] == row["speedup"]:
                speedup = rounds_interval(ratios).exp()
                expected |= {"speedup": speedup.center, "speedup_low": speedup.low, "speedup_high": speedup.high}
        for column, other in expected.items():
            has = row[column]
            if other is not None and abs(has - other) > DISAGREE * abs(other):
                yield Contradiction(row=row["row"], column=column, has=has, other=other, source="by blocks.csv")


def _round_logs(
    blocks: pd.DataFrame, codes: Sequence[NDArray[np.integer]]
) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Return each arm's mean logarithm of a step's time in each round that counts, in order, by the arm's codes."""
    counted = blocks["discarded"].eq("").to_numpy()
    logs = pd.Series(np.log(blocks["time_ms"].to_numpy() / blocks["steps"].to_numpy())[counted])
    means = logs.groupby([*(code[counted] for code in codes), blocks["round"].to_numpy()[counted]]).mean()
    arms = list(zip(*(means.index.get_level_values(level) for level in (0, 1)), strict=True))
    starts = np.flatnonzero(~pd.Index(arms).duplicated())
    return (
        dict(zip([arms[start] for start in starts], np.split(means.to_numpy(), starts[1:]), strict=True))
        if len(starts)
        else {}
    )
