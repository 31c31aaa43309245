"""Runs that between them have rows of every phase, and what is left of one whose phases stopped or files were cut."""

import csv
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from bench.phases.explain import Explained
from bench.phases.memory import MemoryPeak
from bench.results.columns import COLUMNS, OF_PHASES
from bench.results.records import Identity, Numeric, TrialResult
from bench.spec.data_source import DataSource
from bench.spec.placement import Placement
from bench.spec.trial import Cell, SuiteRef, Trial
from perf.synthetic_fleet import GIB, Shape, write_run
from tests.arms import arms
from tests.phases.test_explain_reasons import FP32, GAINS, figure, step
from tests.phases.test_numerics_report import figures
from tests.report import ablations, fleet
from tests.report.analysis.test_telemetry import hot, samples
from tests.report.builders import GPU, RunBuilder, block, capped, timed
from tests.report.tables.test_measurements import answered

RESULTS = Path(__file__).resolve().parents[2] / "results"
Row = dict[str, str]
ASKED = {"wall_s"} | {field.name for field in fields(Identity)}
"""The columns that a trial which stopped has."""
LOST = ("failed", "timeout", "oom", "unsupported", "nonfinite")
GROUPS = ("kind", "name", "layer", "step", "round", "epoch", "seed", "phase", "precision", "trial", "work", "replicate")
"""The columns by whose words rows are dropped together."""


def runs_of_every_phase(folder: Path) -> list[Path]:
    """The committed runs, and made-up ones in a folder with what those lack."""
    committed = sorted(path.parent for path in RESULTS.glob("*/run.json"))
    searched, scripts, timed = RunBuilder(folder / "searched"), folder / "scripts", folder / "timed"
    numerics(searched)
    layers(searched)
    explain(searched)
    inference(searched)
    apart = ablations.apart(RunBuilder(folder / "apart"), {name: [ms] * 3 for name, ms in ablations.STEPS_MS.items()})
    whole = ablations.whole(RunBuilder(folder / "ladder"))
    shape = Shape(gpus=["P100", "A100"], models=["resnet50"], batch_sizes=[64, 128], seeds=2, epochs=3, rounds=4)
    made = [searched.folder, of_scripts(scripts), of_a_gpu(timed), apart.folder, whole.folder]
    made.append(write_run(folder / "fleet", shape))
    for run in made:
        begin(run, "2026-01-01")
    return [*committed, *made]


def begin(run: Path, day: str) -> None:
    """Claim that a run was started on another day, and so is another run, and that it has ended."""
    fleet.edit_run(run, lambda info: info.update(started=f"{day}T00:00:00+00:00", finished=f"{day}T01:00:00+00:00"))


def numerics(run: RunBuilder) -> None:
    for name, more in (("fp32", {}), ("amp-fp16", {"scale": 1024.0, "zero": 20.0, "skipped": (1,)})):
        for seed in (0, 1):
            trial = run.trial("numerics", [name], 128, seed=seed)
            rows = figures(trial.id, name, losses=[2.0 / (1 + number) for number in range(6)], **more)
            for kind, layer, figure_name in (
                ("output_gradient", "", "-20"),
                ("output_gradient", "conv", "zero"),
                ("error", "", "output"),
                ("type", "output", "float16"),
                ("type", "output", "float32"),
                ("type", "weights", "float32"),
            ):
                rows.append(numeric(trial, kind, layer, figure_name, 7.0))
            run.add(trial, TrialResult(precision=name, status="ok", detail="loss 2 in the first step"), records=rows)


def numeric(trial: Trial, kind: Any, layer: str, name: str, value: float) -> Numeric:
    (precision,) = trial.precisions
    return Numeric(trial=trial.id, precision=precision, kind=kind, step=0, layer=layer, name=name, value=value)


def layers(run: RunBuilder) -> None:
    trial = run.trial("layers", ["amp-fp16"], 128)
    of_model = ("concentrated", "error", "kept", "limit", "noise", "trained")
    rows = [numeric(trial, "module", "", name, 0.5) for name in of_model]
    for module in ("head", "body"):
        rows += [numeric(trial, "module", module, name, 0.5) for name in ("error", "share")]
    rows.append(numeric(trial, "module", "head", "keep", 1.0))
    run.add(trial, TrialResult(precision="amp-fp16", status="ok", detail="keep head: 3 %"), records=rows)


def explain(run: RunBuilder) -> None:
    trial = run.trial("explain", ["fp32", "amp-bf16"], 128)
    rows = [*step("fp32", FP32), *step("amp-bf16", GAINS | {"casts and layout": 20.0})]
    for name in trial.precisions:
        for kind in ("types", "operator", "best"):  # the last is one of an earlier version
            rows.append(figure(name, kind, "x", 3.0))
    known = [{name: value for name, value in row.items() if not pd.isna(value)} for row in rows]
    explained = [Explained(trial=trial.id, **row) for row in known]
    run.add(trial, *(TrialResult(precision=name, status="ok") for name in trial.precisions), records=explained)


def inference(run: RunBuilder) -> None:
    for seed in (0, 1):
        run.result("inference", "fp32", seed=seed, row=answered(None))
        run.result("inference", "amp-bf16", seed=seed, row=answered(1.5))


def of_a_gpu(folder: Path) -> Path:
    """A run on a GPU that was watched: timed under a power cap and with its noise, and trained."""
    run = capped(RunBuilder(folder, device=replace(GPU, uuid="GPU-0")), 1.8)
    run.store.add(samples(20, hot))
    run.floor([1.0, 1.01, 0.99]).memory("fp32", 100).memory("amp-bf16", 60).lost("memory", "fp16", "oom", "too big")
    run.train("fp32", [90.0, 90.4, 90.2]).train("amp-bf16", [90.1, 90.3, 90.5], epoch_s=2.0).diverged("amp-fp16")
    run.append(block(run.trial("speed", ["fp32", "amp-bf16"], 128).id, start_s=1.8e9))
    return folder


def of_scripts(folder: Path) -> Path:
    """A run of a training script whose reference has a name of its own."""
    run = RunBuilder(folder, suite="train.py")
    script = {"command": ["train.py"], "arms": [["plain", ""], ["amp", "--amp"]]}
    fleet.edit_run(folder, lambda info: info["request"].update(script=script))
    cell = Cell(
        suite=SuiteRef(name="train.py"),
        placement=Placement(name="0"),
        batch_size=1,
        data=DataSource(kind="script"),
        reference="plain",
    )
    names = ("plain", "amp")
    for name in names:
        peak = MemoryPeak(peak_allocated_bytes=GIB)
        run.add(Trial(cell=cell, phase="memory", arms=arms(name)), TrialResult(precision=name, status="ok", row=peak))
    for replicate in range(3):
        trial = Trial(cell=cell, phase="speed", arms=arms(*names), replicate=replicate)
        speedup, step_ms = 2.0 + replicate / 100, (10.0, 10.05, 10.0)[replicate]
        gain = {"speedup": speedup, "speedup_low": 1.9, "speedup_high": 2.1}
        speeds = (timed(step_ms, 1), timed(step_ms / speedup, 1, **gain))
        observed = {"script_loss": 1.0 + replicate / 10, "script_wait_pct": 5.0}
        results = [
            TrialResult(precision=name, status="ok", row=replace(speed, **observed))
            for name, speed in zip(names, speeds, strict=True)
        ]
        run.add(trial, *results)
    return folder


def cut(folder: Path, draw: Random) -> list[str]:
    """Stop trials of a run after any row, and drop rows of its files; return what was done."""
    there = [name for name in COLUMNS if (folder / name).is_file()]
    files = {name: read(folder / name) for name in there}
    done = [stop_a_trial(files, draw) for _ in range(draw.choice((0, 1, 1, 3)))]
    for name, rows in files.items():
        way = draw.choice(WAYS)
        write(folder / name, way(rows, draw))
        done.append(f"{name}: {way.__name__}")
        if draw.random() < 0.1:
            text = (folder / name).read_bytes()
            (folder / name).write_bytes(text[: draw.randint(text.index(b"\n"), len(text))])
            done.append(f"{name}: its last write is cut off")
        elif name not in OF_PHASES and draw.random() < 0.05:
            (folder / name).unlink()
            done.append(f"{name}: deleted")
    if draw.random() < 0.3:
        fleet.edit_run(folder, lambda info: info.update(finished=None))
        done.append("run.json: unfinished")
    return done


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS[path.name]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def stop_a_trial(files: dict[str, list[Row]], draw: Random) -> str:
    """Let a trial end in a status without figures, with its first rows in the other files."""
    of_phases = [row for name in OF_PHASES for row in files.get(name, ())]
    if not of_phases:
        return "no trial"
    stopped, status = draw.choice(of_phases)["trial"], draw.choice(LOST)
    for row in of_phases:
        if row["trial"] == stopped:
            row.update({name: "" for name in row if name not in ASKED}, status=status, detail="it stopped")
    for name, rows in files.items():
        if name not in OF_PHASES and name != "telemetry.csv":
            own = [row for row in rows if row["trial"] == stopped]
            others = [row for row in rows if row["trial"] != stopped]
            files[name] = others + own[: draw.randint(0, len(own))]
    return f"{stopped}: {status}"


def no_rows(rows: list[Row], _draw: Random) -> list[Row]:
    return rows


def the_last_rows(rows: list[Row], draw: Random) -> list[Row]:
    return rows[: draw.randint(0, len(rows))]


def rows_here_and_there(rows: list[Row], draw: Random) -> list[Row]:
    share = draw.choice((0.02, 0.2, 0.5, 0.9))
    return [row for row in rows if draw.random() > share]


def rows_of_a_group(rows: list[Row], draw: Random) -> list[Row]:
    """Drop all rows with a word, such as those of a kind of figure, of a layer or of a round."""
    columns = [name for name in GROUPS if len({row.get(name) for row in rows}) > 1]
    if not columns:
        return rows
    column, lost = draw.choice(columns), draw.choice(rows)
    return [row for row in rows if row[column] != lost[column]]


def the_last_rows_of_an_arm(rows: list[Row], draw: Random) -> list[Row]:
    """Drop what an arm of a trial wrote after some row."""
    if not rows or "trial" not in rows[0]:
        return rows
    one = draw.choice(rows)
    own = [row for row in rows if (row["trial"], row["precision"]) == (one["trial"], one["precision"])]
    lost = own[draw.randint(0, len(own)) :]
    return [row for row in rows if not any(row is other for other in lost)]


WAYS = (no_rows, no_rows, the_last_rows, rows_here_and_there, rows_of_a_group, rows_of_a_group, the_last_rows_of_an_arm)
"""What is dropped of a file."""
