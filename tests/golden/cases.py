"""The cases: each has a name and the folders of runs that it reports."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

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


def of_builder(fill, folder):
    """Write one finished run, named as the case is."""
    run = RunBuilder(folder)
    fill(run)
    fleet.begin(folder, "2026-01-01")
    return folder


def script(folder):
    """A run of a training script whose reference has a name of its own."""
    run = RunBuilder(folder, suite="train.py", reference="plain")
    script = {"command": ["train.py"], "arms": [["plain", ""], ["amp", "--amp"]]}
    fleet.edit_run(folder, lambda info: info["request"].update(script=script))
    for name in ("plain", "amp"):
        run.memory(name, 1024, batch=1)
    for replicate, step_ms, speedup, loss in (
        (0, 10.0, 2.0, 1.0),
        (1, 10.05, 2.01, 1.1),
        (2, 10.0, 2.02, 1.2),
    ):
        observed = {"script_loss": loss, "script_wait_pct": 5.0}
        speeds = {
            "plain": timed(step_ms, 1, **observed),
            "amp": timed(step_ms / speedup, 1, speedup=speedup, within=0.05, **observed),
        }
        run.process(replicate, speeds, batch=1)
    fleet.begin(folder, "2026-01-01")
    return folder


def failures(run):
    """A precision that fails in every phase, next to two that are measured."""
    measured(run)
    for phase, status in zip(MEASURING, itertools.cycle(LOST), strict=False):
        run.lost(phase, "amp-fp16", status, f"the {phase} trial ended as {status}")
    ended = "the step ended as nonfinite"
    run.lost("speed", "amp-bf16+set-to-none", "nonfinite", ended, ablation=True)
    for phase in ("speed", "memory"):
        run.lost(phase, "fp32", "oom", "too large", batch=256)
    run.diverged("fp16")


def measured(run, *speedups):
    run.speed(speedups=speedups or (2.0, 2.02, 1.98))
    run.memory("fp32", 100)
    run.memory("amp-bf16", 60)
    run.train("fp32", [90.0, 90.4])
    run.train("amp-bf16", [90.1, 90.3], epoch_s=2.0)


def explain(run):
    """Casts take a quarter of the precision's step."""
    measured(run, 1.33, 1.34, 1.32)
    rows = step("fp32", FP32)
    rows += step("amp-bf16", GAINS | {"casts and layout": 20.0})
    product = {"work": "other products", "detail": "128x512 512x512"}
    copied = {"work": "casts and layout", "detail": "512x512"}
    for name, product_ms, copy_ms in (
        ("fp32", 60.0, 2.0),
        ("amp-bf16", 24.0, 20.0),
    ):
        rows.append(figure(name, "operator", "aten::addmm", product_ms, **product))
        rows.append(figure(name, "operator", "aten::_to_copy", copy_ms, **copied))
    rows += held("fp32", ("convolution", "body.0", 60), ("relu", "body.1", 40))
    rows += held("amp-bf16", ("_to_copy", "body.0", 30), ("relu", "body.1", 20))
    arms = ["fp32", "amp-bf16"]
    trial = run.trial("explain", arms, 128)
    results = [TrialResult(arm=name, status="ok") for name in arms]
    explained = [Explained(trial=trial.id, **row) for row in rows]
    run.add(trial, *results, records=explained)


def layers(run):
    measured(run)
    trial = run.trial("layers", ["amp-fp16"], 128)
    rows = []
    for layer, name, value in (
        ("", "concentrated", 0.5),
        ("", "error", 0.5),
        ("", "kept", 0.5),
        ("", "limit", 0.5),
        ("head", "error", 0.5),
        ("head", "share", 0.5),
        ("body", "error", 0.5),
        ("body", "share", 0.5),
        ("head", "keep", 1.0),
    ):
        row = {"kind": "module", "layer": layer, "name": name, "value": value}
        rows.append(numeric(trial.id, "amp-fp16", **row))
    result = TrialResult(arm="amp-fp16", status="ok", detail="keep head: 3 %")
    run.add(trial, result, records=rows)


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


def runs_of(case, folder):
    """Return the folders of a case's runs; a run that must be written is ``folder``/NAME."""
    if case in COMMITTED:
        return [RESULTS / name for name in COMMITTED[case]]
    return [MADE[case](folder / case)]
