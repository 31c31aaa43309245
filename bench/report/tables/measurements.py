"""Tables of what was measured and trained, of one workload each.

``rows`` are those of the summary, ``trials`` those of ``Runs.trials`` in the summary's order, with its ``workload`` and
``where``. A table is None where nothing was measured of what it shows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import pandas as pd

from bench.report.analysis.alone import IN_TURNS
from bench.report.analysis.doubts import doubted, marked_verdict
from bench.report.analysis.explanation import MEMORY_KINDS, memory_held
from bench.report.analysis.judge import MIN_SEEDS, judged_by
from bench.report.analysis.summary import MEASURES, best_rows, over
from bench.report.analysis.verdict import Answer
from bench.report.format import (
    GIB,
    MIB,
    UNKNOWN,
    change,
    error,
    estimate,
    known,
    memory_unit,
    number,
    ratio,
    records,
    signed,
    source,
    written,
)
from bench.report.reading.load import KEY, SUBJECT
from bench.report.tables.table import (
    ARM,
    BATCH,
    DEVICE,
    PRECISION,
    RECIPE,
    Column,
    Entry,
    Row,
    Table,
    decimals,
    figures,
    general,
    optional,
    over_fp32,
    table,
    whole,
    word,
    words,
)
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import ALONE, ENERGY, LOSS, QUALITY, learned
from bench.spec.precisions import BASELINE

INFERENCE_SPEEDUP = ("inference_speedup", "inference_speedup_low", "inference_speedup_high")
SUM = "Of devices that train together, peak memory is the largest device's, and after it the sum of all devices' peaks."
ABOUT_FIGURES = (
    "The speedup is a trimmed mean over paired rounds, a step a median over blocks, time/epoch a median over epochs "
    "after the first, with the fastest and slowest: a ratio of two of these may differ from the speedup by chance."
)
ABOUT_ARCHITECTURES = f"Bold: what to train with. {ABOUT_FIGURES}"
KINDS = {"tracked_peak_bytes": "tensors", **{column: kind for kind, column in MEMORY_KINDS.items()}}
ON_A_GPU = {"first_peak_bytes": "first step", "peak_reserved_bytes": "reserved", "driver_used_bytes": "driver"}
ON_A_GPU |= {"gpu_used_bytes": "nvidia-smi"}
"""Columns of memory and what their tables call them."""
LAYERS = {
    "tensors": "tracked_peak_bytes",
    "workspaces of libraries, which follow cuDNN's choice of algorithms, and rounding": "peak_allocated_bytes",
    "held by the allocator": "peak_reserved_bytes",
    "context and kernels of the driver and of libraries": "driver_used_bytes",
    "other processes": "gpu_used_bytes",
}
"""Of the memory that nvidia-smi shows, what each column adds to the one before it."""
ABOUT_MEMORY = (
    "The peak is allocated bytes on a GPU, resident memory on a CPU. Tensors is the most that a step's tensors held at "
    "once, counted tensor by tensor in a step of its own. The kinds add up to it: parameters with buffers; gradients; "
    "the optimizer's state; activations, with autocast's 16-bit copies of weights; temporaries, all else, the batches "
    "included. Peak minus tensors is the memory of libraries and the allocator's rounding and slack."
)
ABOUT_GPU = (
    " Reserved is what the allocator held; driver is what the process takes on the GPU, its context included; "
    "nvidia-smi is what all processes take, as it and gpustat show it."
)
ABOUT_DISTRIBUTED = (
    " Of devices that train together each figure is that of the device with the most, except for the sum of peaks."
)
WAITING_PCT = 10.0
"""Share of training time spent waiting for batches from which the loader may be the limit."""
OF_THE_STEP = 0.9
"""But not where training reaches this share of the step's own throughput: then the GPU had work meanwhile."""
FP16_LARGEST = 65504.0
FP16_NORMAL, FP16_ZERO = -14, -25
"""Powers of two below which float16 is subnormal, and below which it rounds to zero."""
FIRST_SCALE = 2.0**16
"""GradScaler's first scale, which stands for scaling where a precision has none."""
GRADIENTS = {"gradient": "parameters", "output_gradient": "layers' outputs"}
"""What gradients of each kind are with respect to."""
LAST = 5
"""Steps at the end of the phase whose gradients are counted together."""
STORAGE = {"device": "device", "host": "host memory", "file": "disk"}
TRAINED = (
    DEVICE,
    words("data", lambda row: source(str(row["data"]))),
    BATCH,
    PRECISION,
    figures("seeds", "seeds", 1),
    figures("epochs", "epochs", 1),
)
"""The columns that name what was trained."""


def architectures(rows: pd.DataFrame, answers: Sequence[Answer]) -> list[Table]:
    """Return a table for each workload: every precision on each device, at the batch size of its answer.

    Published rows are there at all batch sizes. The advised row stands out. Legends are below the last table.
    """
    given = {(answer.workload, answer.where): answer for answer in answers}
    lines: dict[str, list[Row]] = {}
    for row in records(rows):
        answer = given.get((row["workload"], row["where"]))
        is_shown = row["batch_size"] == answer.batch if answer else known(row.get("published_by"))
        if is_shown and any(known(row[name]) for name in MEASURES):
            tie = " ≈" if answer and row["precision"] in answer.ties else ""
            is_advised = answer is not None and row["precision"] == answer.precision
            lines.setdefault(row["workload"], []).append(row | {"tie": tie, "is_advised": is_advised})
    tables = [
        table(name, of_workload, _of_arms(of_workload, "label"), strong=itemgetter("is_advised"))
        for name, of_workload in lines.items()
    ]
    shown = [each for each in tables if each is not None]
    footnotes = list(dict.fromkeys(note for each in shown for note in each.footnotes))
    footnotes += [SUM] if any(known(row["all_devices_bytes"]) for row in chain(*lines.values())) else []
    last = len(shown) - 1
    return [
        replace(each, footnotes=[ABOUT_ARCHITECTURES, *footnotes] if place == last else [])
        for place, each in enumerate(shown)
    ]


def unfolded(rows: pd.DataFrame, answers: Sequence[Answer]) -> dict[str, Table | None]:
    """Return what was measured of each answer's model and device, by the answer's subject."""
    of_each = dict(list(rows.groupby(["workload", "where"], sort=False)))
    return {answer.subject: every_batch(of_each[answer.workload, answer.where], of_one=True) for answer in answers}


def every_batch(rows: pd.DataFrame, *, of_one: bool = False) -> Table | None:
    """Return the table of one workload with every device, batch size and precision, and of what speeds rest on.

    The name of a device is left out if the rows are ``of_one``.
    """
    measured = records(rows[rows[MEASURES].notna().any(axis=1)])
    columns = [
        *_of_arms(measured, "" if of_one else "where"),
        words("verdict", marked_verdict),
        words("measured in", "measured_in"),
        *general(_against_fp32, BASELINE),
        *optional(words("notes", lambda row: row.get("note"), wrap=True)),
    ]
    about = SUM if rows["all_devices_bytes"].notna().any() else ""
    notes = [] if of_one else [ABOUT_FIGURES]
    return table("Every batch size", [row | {"tie": ""} for row in measured], columns, about, notes)


def _of_arms(rows: Sequence[Row], device: str) -> list[Column]:
    """Return the columns of arms that have a mark ``tie``; ``device`` is the column that names the device, if any."""

    def marked(row: Row) -> str:
        marks = "".join(doubt.mark for doubt in doubted([row]) if not doubt.of_figure)
        return f"{row['precision']}{row['tie']} {marks}".rstrip()

    def unmarked(row: Row, name: str) -> str:
        return number(row[name]) if row["speed_status"] in MEASURED else word(row["speed_status"])

    def speedup(row: Row) -> str:
        turns = [row.get(name, math.nan) for name in IN_TURNS]
        return over_fp32(row) + (f"; in turns {ratio(*turns)}" if known(turns[0]) else "")

    def epoch(row: Row) -> str:
        ends = [number(row[name], 3) for name in ("fastest_epoch_s", "slowest_epoch_s") if known(row[name])]
        return number(row["time_per_epoch_s"]) + (f" ({'–'.join(ends)})" if len(set(ends)) > 1 else "")

    def peak(row: Row) -> str:
        share = f" ({change(row['memory_change'])})" if known(row["memory_change"]) else ""
        every = f"; sum {number(row['all_devices_bytes'] / MIB)}" if known(row["all_devices_bytes"]) else ""
        return number(row["memory_bytes"] / MIB) + share + every

    def learned_change(row: Row) -> str:
        quality = judged_by(row)
        if quality is None:
            return "baseline" if row["precision"] == BASELINE and known(row["train_loss"]) else ""
        return f"{written(quality, [row[name] for name in quality.changes], quality.short)}, {row['parity']}"

    of_tokens = any(known(row["token_loss"]) for row in rows)
    trained: dict[str, Any] = {"status": "train_status", "lost": "lost_train"}
    accuracy = figures("accuracy (%)", "accuracy_pct", decimals, **trained)
    return [
        *([words("device", device), *optional(words("architecture", "architecture"))] if device else []),
        words("precision", marked),
        BATCH,
        *optional(figures("time/epoch (s)", epoch, **trained)),
        figures("step (ms)", lambda row: unmarked(row, "step_ms")),
        *optional(figures("samples/s", lambda row: unmarked(row, "samples_per_s"))),
        *optional(figures("tokens/s", "tokens_per_s")),
        figures("speedup [95 % interval]", speedup, status="speed_status", lost="lost_speed"),
        figures("peak memory (MiB, vs fp32)", peak, status="memory_status"),
        *optional(figures("test loss (nats)", "token_loss", **trained) if of_tokens else accuracy),
        *_quality(rows),
        *optional(words("vs fp32 [90 % interval], parity", learned_change, wrap=True)),
    ]


def _quality(rows: Sequence[Row]) -> list[Column]:
    """Return the column of a suite's own figure of merit, where rows of one suite have one."""
    metric = _described(QUALITY, rows)
    column = figures(metric.figure_title, metric.figure, status=metric.status, lost="lost_train")
    return optional(column) if metric != QUALITY else []


def _described(metric: Metric, rows: Sequence[Row]) -> Metric:
    """Return a metric as the first of the rows with such a figure describes it."""
    return metric.of(next((row for row in rows if known(row[metric.figure])), {}))


def _against_fp32(metric: Metric, write: Callable[[Row], str] | None = None) -> Callable[[Row], str]:
    """Return a function that writes a row's change from fp32; "baseline" is fp32's own."""

    def cell(row: Row) -> str:
        if row["precision"] == BASELINE and known(row[metric.figure]):
            return "baseline"
        return write(row) if write else written(metric, [row[name] for name in metric.changes])

    return cell


def best_batch(rows: pd.DataFrame) -> Table | None:
    """Return each precision of a workload at its own best batch size, unless all of a device have the same one."""
    best = best_rows(rows)
    best = best[best.groupby(SUBJECT, sort=False)["batch_size"].transform("nunique") > 1]
    lines = records(best)
    fp32 = {tuple(row[name] for name in SUBJECT): row for row in lines if row["precision"] == BASELINE}

    def over_best_fp32(row: Row) -> str:
        reference = fp32.get(tuple(row[name] for name in SUBJECT))
        return "baseline" if row is reference else estimate(over(row, reference)) if reference else ""

    columns = [
        DEVICE,
        PRECISION,
        figures("best batch", "batch_size", whole),
        figures("throughput (samples/s)", "samples_per_s", status="speed_status"),
        figures("÷ fp32's [95 % interval]", over_best_fp32),
    ]
    about = (
        "Each precision at the measured batch size at which its throughput was highest, which includes what the memory "
        "saved makes possible. A training at another batch size may need another learning rate. At one batch size the "
        "ratio is the speedup itself; at two it was not measured side by side and has Welch's interval over processes, "
        "which is wider. Devices of which all precisions are fastest at the same batch size are left out."
    )
    return table("Best batch", lines, columns, about)


def largest_batch(trials: pd.DataFrame, rows: pd.DataFrame) -> Table | None:
    """Return the largest batch of each precision that fits; ``trials`` are all rows of ``Runs.trials``."""
    columns = [
        DEVICE,
        PRECISION,
        figures("largest batch", "batch_size", whole, status="status"),
        figures("× fp32's", "over_fp32", 3),
        words("bound by", "fit_bound"),
        figures("held at its peak (GiB)", "fit_peak_bytes", 3, per=GIB),
        figures("free before (GiB)", "fit_free_bytes", 3, per=GIB),
    ]
    about = (
        "The largest batch of which a few training steps fit, found by doubling and bisection to a sixteenth of its "
        "size, with one precision alone in each process. Bound by memory: the next larger batch tried ran out of it. "
        "Predicted memory: less than a fifth of a CPU's available memory would have been left. Time: a step was "
        "predicted to take too long, so a larger batch may fit (docs/measuring.md)."
    )
    tried = trials[trials["phase"] == "fit"].merge(rows[[*SUBJECT, "where"]].drop_duplicates(), on=SUBJECT)
    lines: list[Row] = []
    for _, subject in tried.groupby(SUBJECT, sort=False):
        fits = subject["batch_size"].where(subject["status"] == "ok")
        lines += records(subject.assign(over_fp32=fits / fits[subject["precision"] == BASELINE].max()))
    return table("Largest batch", lines, columns, about)


def memory(trials: pd.DataFrame) -> Table | None:
    """Return what memory was used for, by precision."""
    rows = memory_held(trials)
    on_a_gpu, distributed = (rows[name].notna().any() for name in ("peak_allocated_bytes", "all_devices_bytes"))
    peak = "peak" if rows["peak_resident_bytes"].notna().any() else "allocated"
    kinds = {"peak": peak} | ({"all_devices_bytes": "sum of peaks"} if distributed else {}) | KINDS
    kinds |= ON_A_GPU if on_a_gpu else {}
    unit, size, digits = memory_unit(rows[[*kinds]].max().max())
    columns = [
        figures(f"{kind} ({unit})", name, lambda value: f"{value:,.{digits}f}", per=size)
        for name, kind in kinds.items()
    ]
    about = ABOUT_MEMORY + (ABOUT_GPU if on_a_gpu else "") + (ABOUT_DISTRIBUTED if distributed else "")
    return table("Where the memory went", records(rows), [*ARM, *columns], about)


def memory_remarks(trials: pd.DataFrame) -> list[str]:
    """Say why the same training takes more memory on one GPU than on another, of the two that differ most."""
    rows = memory_held(trials)
    rows = rows[rows["gpu_used_bytes"].notna() & rows["all_devices_bytes"].isna()]
    alike = rows.sort_values("gpu_used_bytes", kind="stable").groupby(["precision", "batch_size"], sort=False)
    pairs = [group.iloc[[0, -1]] for _, group in alike if group["device"].iloc[0] != group["device"].iloc[-1]]
    if not pairs:
        return []
    pair = max(pairs, key=lambda pair: float(pair["gpu_used_bytes"].diff().iloc[-1]))
    whole_gpu = pair["driver_used_bytes"].fillna(pair["gpu_used_bytes"])
    layers = pair.assign(driver_used_bytes=whole_gpu)[list(LAYERS.values())].ffill(axis=1)
    parts = layers.diff(axis=1).fillna(layers.iloc[:, :1]).diff().iloc[-1] / MIB
    steps = [f"{kind} {signed(parts[column], 1)}" for kind, column in LAYERS.items() if abs(parts[column]) >= 0.05]
    less, more = records(pair)
    held = (f"{number(row['gpu_used_bytes'] / MIB)} MiB on {row['where']}" for row in (more, less))
    return [
        f"The same training takes another amount of memory on another GPU: {more['precision']} at batch "
        f"{more['batch_size']:.0f} takes {' and '.join(held)}, as nvidia-smi shows it. The difference in MiB: "
        f"{', '.join(steps) or 'none'}."
    ]


def energy(rows: pd.DataFrame) -> Table | None:
    """Return what a step of each precision draws."""
    columns = [
        *ARM,
        words("source", "energy_source"),
        figures("energy/step (J)", "energy_j_per_step", status="energy_status"),
        figures("above idle (J)", "energy_net_j_per_step"),
        figures("samples/J", lambda row: row["batch_size"] / row["energy_j_per_step"]),
        figures("step alone (ms)", lambda row: 1e3 * row["energy_window_s"] / row["energy_steps"]),
        *optional(figures("speedup alone", _against_fp32(ALONE))),
        figures("mean power (W)", "mean_power_w", 3),
        figures("idle power (W)", "idle_power_w", 3),
        figures("energy ÷ fp32", _against_fp32(ENERGY, lambda row: ratio(1 + row["energy_change"]))),
    ]
    about = (
        "Energy/step is what the board draws for a step of continuous training, idle draw included; above idle is "
        "without it. Samples/J rests on energy/step. Source: counter is the GPU's own energy counter, power the "
        "integral of its power readings; the two are not compared with each other. One window of steps was measured "
        "for each precision, so there is no interval. Step alone is that of this window, in which the host reads the "
        "meters; speedup alone is of the steps after it, in which it does not."
    )
    return table("Energy", records(rows[rows["energy_status"].notna()]), columns, about)


def inference(trials: pd.DataFrame) -> Table | None:
    """Return inference; of several seeds the lowest is shown."""
    rows = trials[trials["phase"] == "inference"].sort_values("seed", kind="stable").drop_duplicates(KEY).sort_index()
    columns = [
        *ARM,
        *optional(
            figures("latency p50 (ms)", "latency_p50_ms", status="status"),
            figures("latency p95 (ms)", "latency_p95_ms"),
            figures("samples/s", "inference_samples_per_s"),
            figures("speedup [95 % interval]", lambda row: over_fp32(row, *INFERENCE_SPEEDUP)),
            figures("same answer as fp32 (%)", "top1_agreement_pct", decimals),
            figures("largest output error", "output_error", error),
        ),
    ]
    about = (
        "The forward pass in eval mode, each precision next to fp32 in one process. Latency is that of one sample; "
        "samples/s and the speedup are at the batch size. Inputs are random, and weights are those that training "
        "begins with. The output error is relative to fp32's largest output."
    )
    return table("Inference", records(rows), columns, about)


# Training.


def training(rows: pd.DataFrame) -> list[Table | None]:
    """Return what training learned and what it cost; nothing where nothing was trained."""
    trained = records(rows[rows["train_status"].notna()])
    return [_learned(trained), _cost(trained)]


def training_remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence on each arm, of any workloads, whose training the loader limits."""
    shares = rows["train_samples_per_s"] / rows["samples_per_s"]
    waiting = rows.assign(reached=shares)[(rows["data_wait_pct"] >= WAITING_PCT) & ~(shares >= OF_THE_STEP)]
    return [_loader_remark(row) for row in records(waiting)]


def _loader_remark(arm: Row) -> str:
    wait, share = arm["data_wait_pct"], arm["reached"]
    is_part = wait < 100 and share / (1 - wait / 100) < OF_THE_STEP  # of which it would fall short without waiting, too
    limit = "the loader is a part of the limit" if is_part else "the loader, not arithmetic, is the limit"
    text = f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}: {limit}. Training waited for batches"
    text += f" {number(wait, 2)} % of its time"
    if known(share):
        text += f" and reached {number(100 * share, 2)} % of the throughput of its steps on data already on the device"
    return f"{text}."


def _learned(rows: list[Row]) -> Table | None:
    columns = [
        *TRAINED,
        *optional(
            figures("train loss", "train_loss", status="train_status"),
            figures("test loss", "test_loss"),
            figures("above the entropy (nats) [95 % interval]", _above_entropy),
            figures("perplexity", "perplexity"),
            figures("test accuracy (%) ± sd", _accuracy, status="train_status", lost="lost_train"),
            figures("evaluated in fp32 (%)", "accuracy_fp32_pct", decimals),
            *_quality(rows),
            *(
                figures(f"difference ({metric.unit or metric.label}) [90 % interval]", partial(_difference, metric))
                for metric in (_described(metric, rows) for metric in learned())
            ),
            words("parity", "parity"),
        ),
    ]
    about = "Means over seeds, after the last epoch. The difference is precision − fp32, seed by seed."
    qualities = dict.fromkeys(filter(None, (judged_by(row) for row in rows)))
    about += " ".join(["", *map(_how_judged, qualities)])
    if any(known(row["entropy_nats"]) for row in rows):
        about += (
            " Of the data called markov the entropy rate is known, the least test loss that can be expected: how far "
            "above it the loss lies is averaged over seeds, each with sequences of its own."
        )
    return table("Training", rows, columns, about)


def _how_judged(metric: Metric) -> str:
    margin = f"{metric.margin:g} {metric.unit}".rstrip()
    return (
        f"Parity of {metric.label} is judged from {MIN_SEEDS} seeds on, at a margin of {margin} that was fixed "
        f"beforehand. EQUIVALENT: the interval lies within ±{margin}. NON-INFERIOR: it may be better, but not worse, "
        "by more. WORSE: all of it is worse by more. INCONCLUSIVE: it holds the margin on the worse side."
    )


def _above_entropy(row: Row) -> str:
    return written(LOSS, [row[f"above_entropy{end}"] for end in ("", "_low", "_high")])


def _accuracy(row: Row) -> str:
    spread = f" ± {decimals(row['accuracy_sd'])}" if known(row["accuracy_sd"]) else ""
    return f"{decimals(row['accuracy_pct'])}{spread}"


def _difference(metric: Metric, row: Row) -> str:
    return "baseline" if row["precision"] == BASELINE else written(metric, [row[name] for name in metric.changes])


def _cost(rows: list[Row]) -> Table | None:
    columns = [
        *TRAINED,
        *optional(
            figures("time/epoch (s)", "time_per_epoch_s", status="train_status", lost="lost_train"),
            figures(
                "epoch speedup [95 % interval]", lambda row: over_fp32(row, "epoch_speedup", "epoch_low", "epoch_high")
            ),
            figures("step speedup [95 % interval]", _step_speedup),
            words("data from", lambda row: STORAGE.get(row["data_storage"])),
            figures("waiting for data (%)", "data_wait_pct", 2),
            figures("total time (s)", "total_s"),
            figures("time to accuracy (s)", _time_to_accuracy),
            figures("checkpoint (MiB)", "checkpoint_bytes", per=MIB),
            figures("checkpoint in 16 bit (MiB)", "checkpoint_16bit_bytes", per=MIB),
            figures("energy (kJ)", "train_energy_j", per=1000),
        ),
    ]
    about = (
        "Time per epoch is training alone, loading included; the total includes evaluation. The epoch speedup is "
        "fp32's time per epoch divided by the precision's, seed by seed, with Student's interval over the seeds; the "
        "step speedup is that of the tables above, on data already on the device. A checkpoint is the model's weights."
    )
    return table("Training: time, storage and energy", rows, columns, about)


def _step_speedup(row: Row) -> str:
    return "" if known(row.get("published_by")) else over_fp32(row)  # that is of time per epoch, or of throughput


def _time_to_accuracy(row: Row) -> str:
    """Write the mean time of the seeds that reached the target, and how many they are where not all did."""
    target = row["target_accuracy_pct"]
    if not known(target):
        return UNKNOWN
    if not row["reached"]:
        return f"{target:g} % not reached"
    some = row["reached"] < row["seeds"]
    of_seeds = f", {row['reached']:.0f} of {row['seeds']:.0f} seeds" if some else ""
    return f"{number(row['time_to_accuracy_s'])} (to {target:g} %{of_seeds})"


# The numerics phase.


def numerics(rows: pd.DataFrame) -> list[Table | None]:
    """Return the tables of one workload, of rows of ``Runs.numerics`` in the summary's order with its ``where``."""
    arms = [arm for _, arm in first_seed(rows[rows["kind"] != "module"]).groupby(KEY, sort=False)]
    return [_first_steps(arms), _gradients(arms), _errors(arms), _types(arms)]


def first_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the lowest seed of each arm: one training is shown, not a mean of several."""
    return rows[rows["seed"] == rows.groupby(KEY)["seed"].transform("min")]


def last_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the figures of the last recorded steps: five consecutive ones, or the one that failed."""
    steps = sorted(rows["step"].unique(), reverse=True)
    together = [step for index, step in enumerate(steps) if steps[0] - step == index]
    return rows[rows["step"].isin(together[:LAST] if len(together) >= LAST else together[:1])]


def _steps(arm: pd.DataFrame, name: str) -> pd.Series:
    return arm[(arm["kind"] == "step") & (arm["name"] == name)].sort_values("step")["value"]


def _first_steps(arms: list[pd.DataFrame]) -> Table | None:
    columns = [
        *ARM,
        *optional(
            figures("steps", "steps", whole),
            figures("skipped", "skipped", 1),
            figures("first loss", "first_loss"),
            figures("last loss", "last_loss"),
            figures("loss scale at the end", "loss_scale"),
            figures("largest activation (layer)", "activation"),
            figures("of fp16's largest (%)", "activation_share", 2, per=FP16_LARGEST / 100),
        ),
    ]
    rows = [defaultdict(str, _named(arm) | _course(arm) | _activation(arm)) for arm in arms]
    return table("Numerics: the first steps", rows, columns)


def _named(arm: pd.DataFrame) -> dict[str, Any]:
    return {name: arm.iloc[0][name] for name in ("where", "batch_size", "precision")}


def _course(arm: pd.DataFrame) -> dict[str, Any]:
    """Return how an arm's steps began and ended; nothing where none is in the file."""
    losses, scales = _steps(arm, "loss"), _steps(arm, "loss_scale")
    if losses.empty:
        return {}
    last = losses.iloc[-1]
    failed = not known(last) or (scales.empty and (_steps(arm, "finite").tail(1) == 0).any())
    return {
        "steps": len(losses),
        "skipped": _steps(arm, "skipped").sum() if len(scales) else None,
        "first_loss": losses.iloc[0],
        "last_loss": "not finite" if failed else last,
        "loss_scale": scales.iloc[-1] if len(scales) else None,
    }


def _gradients(arms: list[pd.DataFrame]) -> Table | None:
    columns = [
        *ARM,
        words("gradients of", "of"),
        figures("zero (%)", "zero", 3),
        figures("in fp16: zero (%)", "lost", 3),
        figures("subnormal (%)", "subnormal", 3),
        words("most in fp16 zero (layer)", "worst"),
        figures("loss scale S", "scale"),
        figures("S brings into range (%)", "saved", 3),
        figures("overflow at S (%)", "overflow", 3),
    ]
    about = (
        "Gradients of the loss, unscaled, with respect to parameters, and to the outputs of layers, in the last five "
        "steps; shares of all values. Zero: already; where fp32 has less, most of it underflowed. In fp16: below "
        "2^-25 float16 has only zero, below 2^-14 only subnormal numbers. S is the loss scale, or 2^16, GradScaler's "
        "initial scale, where there is none; it brings into range what is zero without it."
    )
    rows = [
        _named(arm) | {"of": words} | _float16_shares(arm, kind)
        for kind, words in GRADIENTS.items()
        for arm in arms
        if (arm["kind"] == kind).any()
    ]
    return table("Numerics: gradients", rows, columns, about)


def _float16_shares(arm: pd.DataFrame, kind: str) -> dict[str, Any]:
    """Return the shares of an arm's gradients that float16 loses, with its loss scale and without."""
    spread, scales = shares(arm[arm["kind"] == kind]), _steps(arm, "loss_scale")
    scale = scales.iloc[-1] if len(scales) else FIRST_SCALE
    powers = {"zero": -math.inf, "below": -1e3, "above": 1e3, "nonfinite": math.nan}  # the last is in no range
    exponents = pd.Series({name: powers[name] if name in powers else float(name) for name in spread.columns})

    def between(low: float, high: float) -> pd.Series:
        return spread.loc[:, (exponents >= low) & (exponents < high)].sum(axis=1)

    shift, lost = math.log2(scale), between(-1e3, FP16_ZERO)
    of_all = {
        "zero": between(-math.inf, -1e3),
        "lost": lost,
        "subnormal": between(FP16_ZERO, FP16_NORMAL),
        "saved": between(FP16_ZERO - shift, FP16_ZERO),
        "overflow": between(16 - shift, math.inf),
    }
    by_layer = lost[lost.index != ""]
    worst = f"{number(by_layer.max(), 3)} % ({by_layer.idxmax()})" if len(by_layer) else UNKNOWN
    whole_model: dict[str, Any] = {name: part.get("") for name, part in of_all.items()}
    return whole_model | {"scale": scale, "worst": worst}


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how each layer group's gradients spread over magnitudes in the last steps, in per cent of its values.

    There is a row for each layer in the order of ``rows``, which is the model's, and a column for each bin: the
    exponents of powers of two, and zero.
    """
    counts = last_steps(rows).pivot_table(index="layer", columns="name", values="value", aggfunc="sum", fill_value=0.0)
    counts = counts.loc[[layer for layer in rows["layer"].unique() if layer in counts.index]]
    return 100 * counts.div(counts.sum(axis=1), axis=0)


def _activation(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the largest activation with its layer, and its size where it is a number."""
    activations = arm[arm["kind"] == "activation"]
    if activations.empty:
        return {}
    lost = activations[activations["value"].isna()]
    row = activations.sort_values("value").iloc[-1] if lost.empty else lost.iloc[0]
    text = number(row["value"]) if lost.empty else "NaN"
    return {"activation": f"{text} ({row['layer']})", "activation_share": row["value"]}


def _errors(arms: list[pd.DataFrame]) -> Table | None:
    columns = [
        *ARM,
        *optional(
            figures("loss, first step", "first_loss", error),
            figures("gradients, first step", "first_gradient", error),
            figures("loss, last step", "last_loss", error),
            figures("gradients, last step", "last_gradient", error),
            figures("worst layer at the last", "worst"),
            figures("output, first step: SQNR (dB)", "first_output", _decibels),
            figures("output, last step: SQNR (dB)", "last_output", _decibels),
        ),
    ]
    about = (
        "Relative errors of one step against float64 on the same batch with the same weights: of the loss, and of all "
        "gradients together in the Euclidean norm. At an error of 1 nothing is left of a gradient."
    )
    if any("output" in set(arm["name"][arm["kind"] == "error"]) for arm in arms):
        about += (
            " SQNR is the ratio of signal to quantisation noise, 20 log10 of 1 over the relative error: 20 dB are an "
            "error of a tenth."
        )
    rows = [_named(arm) | _error(arm) for arm in arms]
    return table("Numerics: errors against float64", rows, columns, about)


def _error(arm: pd.DataFrame) -> dict[str, Any]:
    """Return the errors of an arm in the first and the last step, in which they were taken."""
    errors_of = arm[arm["kind"] == "error"].sort_values("value")
    last = errors_of.loc[errors_of["step"] > 0, "step"].max()
    errors: dict[str, Any] = {"worst": UNKNOWN}
    for end, step in (("first", 0), ("last", last)):
        rows = errors_of[errors_of["step"] == step]
        whole_model = rows[rows["layer"] == ""].set_index("name")["value"]
        errors |= {f"{end}_{name}": whole_model.get(name) for name in ("loss", "gradient", "output")}
    layers = rows[(rows["layer"] != "") & rows["value"].notna()]
    if len(layers):
        errors["worst"] = f"{error(layers.iloc[-1]['value'])} ({layers.iloc[-1]['layer']})"
    return errors


def _types(arms: list[pd.DataFrame]) -> Table | None:
    parts = ("output", "loss", "gradients", "weights", "master copy", "optimizer states")
    about = (
        "Types as a training step had them, with their shares of the numbers where there are several. The output is "
        "what the loss is computed of; gradients are those of the weights, as the backward pass computes them."
    )
    rows = []
    for arm in arms:
        counts = arm[arm["kind"] == "type"].groupby(["layer", "name"], sort=False)["value"].sum()
        if len(counts):
            shares = 100 * counts / counts.groupby("layer").transform("sum")
            cells = {part: shares[part].sort_values(ascending=False) for part in shares.index.unique("layer")}
            rows.append(defaultdict(str, _named(arm) | {part: _of_types(each) for part, each in cells.items()}))
    return table("Types", rows, [*ARM, *optional(*(words(part, part) for part in parts))], about)


def _of_types(shares: pd.Series) -> str:
    several = len(shares) > 1
    return ", ".join(f"{name} {number(share, 3)} %" if several else str(name) for name, share in shares.items())


def _decibels(value: float) -> str:
    return f"{-20 * math.log10(value):.1f}" if value > 0 else "∞"


TABLES = (
    Entry(50, RECIPE, lambda material: [every_batch(material.rows)], on_page=False),
    Entry(51, RECIPE, lambda material: [best_batch(material.rows)]),
    Entry(52, RECIPE, lambda material: [largest_batch(material.runs.trials, material.rows)]),
    Entry(53, RECIPE, lambda material: [*training(material.rows), *training_remarks(material.rows)]),
    Entry(54, RECIPE, lambda material: [energy(material.rows)]),
    Entry(55, RECIPE, lambda material: [memory(material.trials), *memory_remarks(material.trials)]),
    Entry(60, RECIPE, lambda material: numerics(material.numerics)),
    Entry(61, RECIPE, lambda material: [inference(material.trials)]),
)
