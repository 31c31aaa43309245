"""The cases: each has a name and the folders of runs that it reports."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.spec.phases import MEASURING
from perf.synthetic_fleet import write_run
from tests.report import ablations, cutting
from tests.report.builders import RunBuilder

RESULTS = Path(__file__).resolve().parents[2] / "results"
LOST = ("oom", "failed", "timeout", "unsupported", "nonfinite", "invalid")
"""The statuses without figures."""


def of_builder(fill: Callable[[RunBuilder], object], folder: Path) -> Path:
    """Write one finished run, named as the case is."""
    run = RunBuilder(folder)
    fill(run)
    cutting.begin(folder, "2026-01-01")
    return folder


def script(folder: Path) -> Path:
    cutting.begin(cutting.of_scripts(folder), "2026-01-01")
    return folder


def failures(run: RunBuilder) -> None:
    """A precision that fails in every phase, next to two that are measured."""
    measured(run)
    for place, phase in enumerate(MEASURING):
        status = LOST[place % len(LOST)]
        run.lost(phase, "amp-fp16", status, f"the {phase} trial ended as {status}")
    run.lost("speed", "amp-bf16+set-to-none", "nonfinite", "the step ended as nonfinite", ablation=True)
    run.lost("speed", "fp32", "oom", "too large", batch=256).lost("memory", "fp32", "oom", "too large", batch=256)
    run.diverged("fp16")


def measured(run: RunBuilder, speedups: tuple[float, ...] = (2.0, 2.02, 1.98)) -> RunBuilder:
    run.speed(speedups=speedups).memory("fp32", 100).memory("amp-bf16", 60)
    return run.train("fp32", [90.0, 90.4]).train("amp-bf16", [90.1, 90.3], epoch_s=2.0)


def explain(run: RunBuilder) -> None:
    cutting.explain(measured(run, (1.33, 1.34, 1.32)))


def layers(run: RunBuilder) -> None:
    cutting.layers(measured(run))


COMMITTED = {
    "gpt-cpu-epyc": ("gpt2-cpu-epyc", "gpt-wide-cpu-epyc"),
    "gpt-tiny-cpu-epyc-parity": ("gpt-tiny-cpu-epyc-parity",),
    "h100-80gb-hbm3": ("h100-80gb-hbm3-resnet50", "h100-80gb-hbm3-mlp"),
    "resnet20-cpu-epyc": ("resnet20-cpu-epyc",),
    "resnet20-cpu-epyc-parity": ("resnet20-cpu-epyc-parity",),
    "resnet20-two-machines": ("resnet20-cpu-epyc", "resnet20-cpu-epyc-parity"),
}
"""The runs of ``results/`` in each case: those of each report in ``reports/``, and two machines in one report."""
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
