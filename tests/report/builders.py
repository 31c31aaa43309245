"""Runs made up for the tests: written by the harness's own store, so the columns are its own."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.phases.energy import Energy
from bench.phases.explain import Explained
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.phases.train import Training
from bench.report import report
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import Answer, answers
from bench.report.reading.load import load
from bench.results.columns import row_of
from bench.results.records import (
    Block,
    Device,
    Environment,
    EpochResult,
    Numeric,
    Status,
    Switches,
    TrialResult,
)
from bench.results.store import Store
from bench.spec.data_source import DataSource
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE
from bench.spec.protocol import Protocol
from bench.spec.trial import Cell, SuiteRef, Trial
from tests.arms import arms
from tests.derived import gained, with_details

GPU = Device(
    placement="0",
    kind="cuda",
    name="NVIDIA Test 1",
    architecture="Hopper",
    compute_capability="9.0",
)
MIB = 2**20
IEEE = Switches(fp32_matmul="ieee", fp32_conv="ieee", loss_scaling=False, matmul_error=1e-7)


class RunBuilder:
    """One run on one device; each method appends the rows of one trial or of a few alike."""

    def __init__(
        self,
        folder: Path,
        *,
        suite: str = "mlp",
        device: Device = GPU,
        parameters: tuple = (),
        target_ci: float | None = None,
        reference: str = BASELINE,
    ) -> None:
        """Begin a run; one with another reference than fp32 is of a script."""
        self.folder, self.device = folder, device
        self.reference = reference
        self.processes: dict[tuple[int, int], dict[str, TrialResult]] = {}
        """The results of each process, by batch size and replicate."""
        self.suite = SuiteRef(name=suite, parameters=parameters)
        request = {"protocol": asdict(Protocol(target_ci=target_ci))}
        self.store = Store(folder)  # stays open, as a run's does
        self.store.write_run(
            {"environment": asdict(environment(device)), "warnings": [], "request": request}
        )

    def summary(self) -> pd.DataFrame:
        return summarise(load([self.folder]).trials)

    def row(self, precision: str = "amp-bf16", batch: int = 128) -> pd.Series:
        """The only row of the summary of a precision at a batch size."""
        rows = self.summary().set_index(["precision", "batch_size"], drop=False)
        return rows.loc[(precision, batch)]

    def answer(self) -> Answer:
        """The only answer of the run."""
        (answer,) = answers(self.summary())
        return answer

    def trial(self, phase: str, precisions: Sequence[str], batch: int, **asked: Any) -> Trial:
        data = DataSource(kind="synthetic" if self.reference == BASELINE else "script")
        cell = Cell(
            suite=self.suite,
            placement=Placement(name=self.device.placement),
            batch_size=batch,
            data=data,
            reference=self.reference,
        )
        return Trial(cell=cell, phase=phase, arms=arms(*precisions), **asked)  # type: ignore[arg-type]

    def add(
        self, trial: Trial, *results: TrialResult, records: Iterable[object] = ()
    ) -> RunBuilder:
        self.store.add_results(trial, self.device, *with_details(trial, results, [*records]))
        return self

    def result(
        self, phase: str, precision: str, *, batch: int = 128, status: Status = "ok", **parts: Any
    ) -> RunBuilder:
        """A trial of one arm; ``parts`` are those of its result, and what was asked, such as the
        replicate.
        """
        asked = {}
        for name in ("replicate", "seed", "epochs", "ablation"):
            if name in parts:
                asked[name] = parts.pop(name)
        result = TrialResult(arm=precision, status=status, **parts)
        return self.add(self.trial(phase, [precision], batch, **asked), result)

    def floor(self, ratios: Sequence[float], **more: Any) -> RunBuilder:
        """One process per ratio of fp32 to itself."""
        for replicate, ratio in enumerate(ratios):
            speed = timed(10.0, 128, speedup=ratio)
            self.result("floor", "fp32", replicate=replicate, row=speed, **more)
        return self

    def append(self, *records: Block | EpochResult | Numeric | Explained) -> RunBuilder:
        """Append rows of details to their files."""
        files = {
            Block: "blocks.csv",
            EpochResult: "epochs.csv",
            Numeric: "numerics_figures.csv",
            Explained: "explain_figures.csv",
        }
        for record in records:
            file = files[type(record)]
            self.store._files[file].append([row_of(record)])
        return self

    def speed(
        self,
        arm: str = "amp-bf16",
        speedups: Sequence[float] = (2.0, 2.02, 1.98),
        *,
        batch: int = 128,
        within: float = 0.005,
        status: Status = "ok",
        switches: Switches = IEEE,
        rounds: int = 20,
    ) -> RunBuilder:
        """One process per speedup, each with fp32 at 10 ms a step and the arm, next to arms that it
        timed before.
        """
        for replicate, speedup in enumerate(speedups):
            fp32 = timed(10.0, batch, rounds=rounds)
            faster = timed(10.0 / speedup, batch, speedup=speedup, within=within, rounds=rounds)
            timed_so_far = self.processes.setdefault((batch, replicate), {})
            for name, state, row in (("fp32", "ok", fp32), (arm, status, faster)):
                timed_so_far[name] = TrialResult(arm=name, status=state, switches=switches, row=row)
            trial = self.trial("speed", list(timed_so_far), batch, replicate=replicate)
            self.add(trial, *timed_so_far.values())
        return self

    def process(self, replicate: int, speeds: dict[str, Speed], batch: int = 128) -> RunBuilder:
        """A process that timed some arms together."""
        results = []
        for name, speed in speeds.items():
            results.append(TrialResult(arm=name, status="ok", row=speed))
        trial = self.trial("speed", list(speeds), batch, replicate=replicate)
        return self.add(trial, *results)

    def together(self, gains: dict[str, Sequence[float]]) -> RunBuilder:
        """A process for each of the gains over fp32, which differ in speed by far more than the
        gains do.
        """
        for replicate, gains_of_process in enumerate(zip(*gains.values(), strict=True)):
            slow = 10.0 * (1 + 0.2 * replicate)
            speeds = {"fp32": timed(slow, 128)}
            for name, gain in zip(gains, gains_of_process, strict=True):
                speeds[name] = timed(slow / gain, 128, within=0.001, speedup=gain)
            self.process(replicate, speeds)
        return self

    def alone(self, precision: str, steps_ms: Sequence[float], *, batch: int = 128) -> RunBuilder:
        """One process per step time, each holding this precision alone."""
        for replicate, step_ms in enumerate(steps_ms):
            speed = timed(step_ms, batch, paired=False)
            self.result("speed", precision, batch=batch, replicate=replicate, row=speed)
        return self

    def drew(self, samples_per_s: float, precision: str = "amp-bf16") -> RunBuilder:
        """A window of energy at this throughput."""
        energy = Energy(energy_source="counter", alone_samples_per_s=samples_per_s)
        return self.result("energy", precision, row=energy)

    def lost(
        self, phase: str, precision: str, status: Status, detail: str = "", **asked: Any
    ) -> RunBuilder:
        """A trial that has a status and no figures."""
        return self.result(phase, precision, status=status, detail=detail, **asked)

    def memory(self, precision: str, mib: float, *, batch: int = 128) -> RunBuilder:
        peak = MemoryPeak(peak_allocated_bytes=int(mib * MIB))
        return self.result("memory", precision, batch=batch, row=peak)

    def train(
        self,
        precision: str,
        accuracies: Sequence[float | None],
        *,
        batch: int = 128,
        epochs: int = 2,
        epoch_s: float | list[float] = 3.0,
        **figures: Any,
    ) -> RunBuilder:
        """One training per accuracy, seeds from 0; None leaves the accuracy unknown.

        ``epoch_s`` is one for all seeds or one for each; ``figures`` are fields of Training, each
        likewise: those that follow from epochs are those of the last, or all of them together.
        """
        for seed, accuracy in enumerate(accuracies):
            trial = self.trial("train", [precision], batch, seed=seed, epochs=epochs)
            chosen = {"epoch_s": epoch_s, **figures}
            for name, value in chosen.items():
                if isinstance(value, list):
                    chosen[name] = value[seed]
            seconds = chosen.pop("epoch_s")
            per_epoch: dict[str, Any] = {}
            if "data_wait_pct" in chosen:
                per_epoch["data_wait_s"] = chosen.pop("data_wait_pct") / 100 * seconds
            if "train_samples_per_s" in chosen:
                per_epoch["samples"] = round(chosen.pop("train_samples_per_s") * seconds)
            course = {"seed": seed, "epochs": epochs, "accuracy": accuracy, "epoch_s": seconds}
            rows = []
            for number in range(1, epochs + 1):
                row = epoch_of(trial.id, precision, epoch=number, **course, **per_epoch)
                rows.append(row)
            for name in [*chosen]:
                if hasattr(row, name):
                    rows[-1] = replace(rows[-1], **{name: chosen.pop(name)})
            training = Training(total_s=seconds * epochs, **chosen)
            result = TrialResult(arm=precision, status="ok", row=training)
            self.add(trial, result, records=rows)
        return self

    def diverged(self, precision: str, *, seed: int = 0, finite: int = 1) -> RunBuilder:
        """A training whose loss is NaN in the epoch after ``finite`` ones, which ends it."""
        trial = self.trial("train", [precision], 128, seed=seed, epochs=2)
        detail = "the training loss became nan"
        result = TrialResult(arm=precision, status="nonfinite", detail=detail)
        self.add(trial, result)
        course = {"seed": seed, "accuracy": 90.0, "epoch_s": 3.0}
        for number in range(1, finite + 1):
            self.append(epoch_of(trial.id, precision, epoch=number, **course))
        lost = {"train_loss": math.nan, "test_loss": math.nan, "test_accuracy_pct": 10.0}
        return self.append(epoch_of(trial.id, precision, epoch=finite + 1, **course, **lost))


def write_report(runs: list[Path], out: Path, **options: Any) -> Path:
    """Report some runs; return the path of report.html, which has every table."""
    report(runs, out, **options)
    return out / "report.html"


def text_of(page: Path) -> str:
    """The words of a report.html, a row of a table as in markdown."""
    text = re.sub(
        r"<(script|style|svg)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    text = re.sub(r"</t[dh]>\s*<t[dh]\b[^>]*>", " | ", text)
    text = re.sub(r"<tr\b[^>]*>\s*<t[dh]\b[^>]*>", "\n| ", text)
    text = re.sub(r"</t[dh]>\s*</tr>", " |\n", text)
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def block(trial: str, precision: str = "fp32", **more: Any) -> Block:
    """A timed block of one step of a millisecond."""
    usual = {
        "round": 0,
        "position": 0,
        "steps": 1,
        "time_ms": 1.0,
        "start_s": 0.0,
    }
    return Block(trial=trial, precision=precision, **usual | more)


def numeric(trial: str, precision: str = "fp32", **more: Any) -> Numeric:
    """A figure of the numerics or the layers phase; usually of the first step of the whole
    model.
    """
    usual = {
        "kind": "step",
        "step": 0,
        "layer": "",
        "name": "loss",
    }
    return Numeric(trial=trial, precision=precision, **usual | more)


def timed(
    step_ms: float,
    batch: int,
    *,
    steady: bool = True,
    rounds: int = 20,
    speedup: float | None = None,
    within: float = 0.0,
    **more: Any,
) -> Speed:
    """The speed of an arm in one process, as ``gained`` over fp32 if it has a speedup."""
    if speedup is not None:
        more |= gained(speedup, within, rounds)
    return Speed(
        steady=steady,
        warmup_steps=10,
        switch_warmup_steps=2,
        block_steps=3,
        rounds=rounds,
        step_ms=step_ms,
        samples_per_step=batch,
        **more,
    )


def capped(run: RunBuilder, speedup: float, *, is_capped: bool = True) -> RunBuilder:
    """Add fp32 and amp-bf16 in three processes.

    The power limit held down their clock in one of them, or in none.
    """
    for replicate in range(3):
        state = {"power_capped": is_capped and replicate == 1}
        speeds = {
            "fp32": timed(10.0, 128, **state),
            "amp-bf16": timed(10.0 / speedup, 128, speedup=speedup, within=0.01, **state),
        }
        run.process(replicate, speeds)
    return run


def epoch_of(
    trial: str,
    precision: str,
    *,
    seed: int,
    epoch: int,
    accuracy: float | None,
    epoch_s: float,
    epochs: int = 2,
    **more: Any,
) -> EpochResult:
    """An epoch of a training that ends at ``accuracy``."""
    if accuracy is not None:
        accuracy *= 1 - 0.4 / epoch + 0.4 / epochs
    usual = {
        "train_loss": (1.0 + 0.05 * seed) / epoch,
        "test_loss": (1.1 + 0.05 * seed) / epoch,
        "test_accuracy_pct": accuracy,
        "train_s": epoch_s,
        "test_s": 0.0,
        "elapsed_s": epoch_s * epoch,
        "data_wait_s": 0.01,
        "samples": 1000,
        "learning_rate": 0.1,
        "loss_scale": None,
        "skipped_steps": 0,
    }
    return EpochResult(trial=trial, precision=precision, seed=seed, epoch=epoch, **usual | more)


def environment(device: Device) -> Environment:
    return Environment(
        host="box",
        os="Linux",
        python="3.12.1",
        torch="2.11.0",
        torchvision="0.26.0",
        cuda="12.6",
        cudnn="9.1",
        driver="550.1",
        devices=(device,),
    )
