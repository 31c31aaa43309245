"""The cases: each has a name and the folders of runs that it reports."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from bench.phases.explain import Explained
from bench.results.records import TrialResult
from bench.spec.phases import MEASURING
from perf.synthetic_fleet import write_run
from tests.phases.test_explain_reasons import FP32, GAINS, figure, held, step
from tests.report import ablations, fleet
from tests.report.builders import RunBuilder, numeric, timed

RESULTS = Path(__file__).resolve().parents[2] / "results"
LOST = ("oom", "failed", "timeout", "unsupported", "nonfinite", "invalid")
"""The statuses without figures."""


def of_builder(fill: Callable[[RunBuilder], object], folder: Path) -> Path:
    """Write one finished run, named as the case is."""
    run = RunBuilder(folder)
    fill(run)
    fleet.begin(folder, "2026-01-01")
    return folder


def script(folder: Path) -> Path:
    """A run of a training script whose reference has a name of its own."""
    run = RunBuilder(folder, suite="train.py", reference="plain")
    script = {"command": ["train.py"], "arms": [["plain", ""], ["amp", "--amp"]]}
    fleet.edit_run(folder, lambda info: info["request"].update(script=script))
    for name in ("plain", "amp"):
        run.memory(name, 1024, batch=1)
    for replicate, step_ms in enumerate((10.0, 10.05, 10.0)):
        speedup = 2.0 + replicate / 100
        observed = {"script_loss": 1.0 + replicate / 10, "script_wait_pct": 5.0}
        plain = timed(step_ms, 1, **observed)
        amp = timed(step_ms / speedup, 1, speedup=speedup, within=0.05, **observed)
        results = []
        for name, row in (("plain", plain), ("amp", amp)):
            results.append(TrialResult(arm=name, status="ok", row=row))
        run.add(run.trial("speed", ["plain", "amp"], 1, replicate=replicate), *results)
    fleet.begin(folder, "2026-01-01")
    return folder


def failures(run: RunBuilder) -> None:
    """A precision that fails in every phase, next to two that are measured."""
    measured(run)
    for place, phase in enumerate(MEASURING):
        status = LOST[place % len(LOST)]
        run.lost(phase, "amp-fp16", status, f"the {phase} trial ended as {status}")
    ended = "the step ended as nonfinite"
    run.lost("speed", "amp-bf16+set-to-none", "nonfinite", ended, ablation=True)
    for phase in ("speed", "memory"):
        run.lost(phase, "fp32", "oom", "too large", batch=256)
    run.diverged("fp16")


def measured(run: RunBuilder, speedups: tuple[float, ...] = (2.0, 2.02, 1.98)) -> RunBuilder:
    run.speed(speedups=speedups).memory("fp32", 100).memory("amp-bf16", 60)
    return run.train("fp32", [90.0, 90.4]).train("amp-bf16", [90.1, 90.3], epoch_s=2.0)


def explain(run: RunBuilder) -> None:
    """Casts take a quarter of the precision's step."""
    measured(run, (1.33, 1.34, 1.32))
    trial = run.trial("explain", ["fp32", "amp-bf16"], 128)
    rows = [*step("fp32", FP32), *step("amp-bf16", GAINS | {"casts and layout": 20.0})]
    for name, product_ms, copy_ms in (("fp32", 60.0, 2.0), ("amp-bf16", 24.0, 20.0)):
        product = {"work": "other products", "detail": "128x512 512x512"}
        copied = {"work": "casts and layout", "detail": "512x512"}
        rows.append(figure(name, "operator", "aten::addmm", product_ms, **product))
        rows.append(figure(name, "operator", "aten::_to_copy", copy_ms, **copied))
    rows += held("fp32", ("convolution", "body.0", 60), ("relu", "body.1", 40))
    rows += held("amp-bf16", ("_to_copy", "body.0", 30), ("relu", "body.1", 20))
    explained = []
    for row in rows:
        known = {name: value for name, value in row.items() if not pd.isna(value)}
        explained.append(Explained(trial=trial.id, **known))
    results = [TrialResult(arm=name, status="ok") for name in trial.arm_names]
    run.add(trial, *results, records=explained)


def layers(run: RunBuilder) -> None:
    measured(run)
    trial = run.trial("layers", ["amp-fp16"], 128)
    rows = []
    for layer, names in (
        ("", ("concentrated", "error", "kept", "limit")),
        ("head", ("error", "share")),
        ("body", ("error", "share")),
    ):
        of_layer = {"kind": "module", "layer": layer}
        for name in names:
            rows.append(numeric(trial.id, "amp-fp16", **of_layer, name=name, value=0.5))
    rows.append(numeric(trial.id, "amp-fp16", kind="module", layer="head", name="keep", value=1.0))
    run.add(trial, TrialResult(arm="amp-fp16", status="ok", detail="keep head: 3 %"), records=rows)


COMMITTED = {
    "gpt-cpu-epyc": ("gpt2-cpu-epyc", "gpt-wide-cpu-epyc"),
    "gpt-tiny-cpu-epyc-parity": ("gpt-tiny-cpu-epyc-parity",),
    "h100-80gb-hbm3": ("h100-80gb-hbm3-resnet50", "h100-80gb-hbm3-mlp"),
    "resnet20-cpu-epyc": ("resnet20-cpu-epyc",),
    "resnet20-cpu-epyc-parity": ("resnet20-cpu-epyc-parity",),
    "resnet20-two-machines": ("resnet20-cpu-epyc", "resnet20-cpu-epyc-parity"),
}
"""The runs of ``results/`` in each case: those of each report in ``reports/``, and two machines in
one report."""
MADE: dict[str, Callable[[Path], Path]] = {
    "fleet": write_run,
    "failures": partial(of_builder, failures),
    "script": script,
    "ladder": partial(of_builder, ablations.whole),
    "explain": partial(of_builder, explain),
    "layers": partial(of_builder, layers),
}
"""The function that writes the run of each other case into the folder that it is given."""
CASES = (*COMMITTED, *MADE)


def runs_of(case: str, folder: Path) -> list[Path]:
    """Return the folders of a case's runs; a run that must be written is ``folder``/NAME."""
    if case in COMMITTED:
        return [RESULTS / name for name in COMMITTED[case]]
    return [MADE[case](folder / case)]
