"""Runs that claim to be of several machines: copies of one, with their devices, software and
figures edited.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.results.columns import COLUMNS
from tests.report.builders import RunBuilder, block, numeric
from tests.rows import edit_rows


def original(folder: Path, *, suite: str = "mlp") -> Path:
    """A run with memory, three processes of speed, and two seeds of training."""
    run = RunBuilder(folder, suite=suite).speed().memory("fp32", 100).memory("amp-bf16", 100)
    run.train("fp32", [90.0, 90.4], epoch_s=[3.0, 3.1])
    run.train("amp-bf16", [90.1, 90.3], epoch_s=[2.0, 2.05])
    return folder


def edit_run(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change run.json in place."""
    path = folder / "run.json"
    run = json.loads(path.read_text())
    change(run)
    path.write_text(json.dumps(run))


def begin(run: Path, day: str) -> None:
    """Claim that a run was started on another day, and so is another run, and that it has ended."""
    started, finished = f"{day}T00:00:00+00:00", f"{day}T01:00:00+00:00"
    edit_run(run, lambda info: info.update(started=started, finished=finished))


def place(row: dict[str, str], placement: str) -> None:
    """Claim that a row was measured on another placement."""
    row.update(placement=placement)


def copy(
    source: Path,
    target: Path,
    *,
    device: str,
    architecture: str,
    faster: float = 1.0,
    jitter: float = 0.01,
    **more: Any,
) -> Path:
    """Copy a run as one of another device: steps ``faster`` and not all alike; ``more`` goes into
    its environment.
    """
    shutil.copytree(source, target)

    def claim(run: dict[str, Any]) -> None:
        run["environment"] |= more
        run["environment"]["devices"][0] |= {"name": device, "architecture": architecture}

    def rename(row: dict[str, str]) -> None:
        row |= {"device": device, "architecture": architecture}

    def hasten(row: dict[str, str]) -> None:
        scale = faster * (1 + jitter * (int(row["trial"].rpartition("-r")[2]) - 1))
        row["time_ms"] = repr(float(row["time_ms"]) / scale)

    def hasten_epoch(row: dict[str, str]) -> None:
        for name in ("train_s", "elapsed_s"):
            row[name] = repr(float(row[name]) / faster)

    edit_run(target, claim)
    edit_rows(target, rename)
    edit_rows(target, hasten, "blocks.csv")
    edit_rows(target, hasten_epoch, "epochs.csv")
    return target


READ = ("precision", "placement", "name")
"""Words that are read as more than names: what cannot be read is refused."""
FIGURES = (
    ("step", "", "loss", 2.0),
    ("gradient", "conv", "-10", 9.0),
    ("error", "conv", "gradient", 0.01),
    ("activation", "conv", "largest", 3.0),
)
"""Of the numerics phase: kind, layer, name, value."""


def with_words(folder: Path, text: str) -> Path:
    """Write a run with rows in every file, and ``text`` in every field of each that may be any
    word.
    """
    run = RunBuilder(folder).speed().memory("fp32", 100).memory("amp-bf16", 60)
    run.train("fp32", [90.0, 90.5]).train("amp-bf16", [90.1, 90.4])
    run.lost("speed", "amp-fp16", "failed", "why")
    trial = run.trial("numerics", ["fp32"], 128)
    run.append(block(run.trial("speed", ["fp32", "amp-bf16"], 128).id, discarded="why"))
    for kind, layer, name, value in FIGURES:
        run.append(numeric(trial.id, kind=kind, layer=layer, name=name, value=value))
    run.result("numerics", "fp32")
    for file in COLUMNS.keys() & {path.name for path in folder.iterdir()}:
        free = []
        for field in COLUMNS[file].values():
            if field.kind == "word" and not field.words and field.name not in READ:
                free.append(field.name)

        def fill(row: dict[str, str], free: list[str] = free) -> None:
            for name in free:
                # "" is the whole model.
                if row.get(name) or name != "layer":
                    row[name] = text + row.get(name, "")

        edit_rows(folder, fill, file)
    words = dict.fromkeys(("host", "os", "python", "torch", "cuda", "cudnn", "driver"), text)

    def claim(info: dict[str, Any]) -> None:
        info["environment"] |= words
        info["environment"]["devices"][0] |= {"name": text, "architecture": text}
        info |= {"warnings": [text], "started": text, "version": text}
        info["request"] = {"argv": [text]}

    edit_run(folder, claim)
    return folder
