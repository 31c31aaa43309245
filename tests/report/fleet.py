"""Runs that claim to be of several machines: copies of one, with their devices, software and
figures edited.
"""

import json
import shutil

from bench.results.columns import COLUMNS
from tests.report.builders import RunBuilder, block, numeric
from tests.rows import edit_rows


def original(folder, *, suite="mlp"):
    """A run with memory, three processes of speed, and two seeds of training."""
    run = RunBuilder(folder, suite=suite)
    run.speed()
    run.memory("fp32", 100)
    run.memory("amp-bf16", 100)
    run.train("fp32", [90.0, 90.4], epoch_s=[3.0, 3.1])
    run.train("amp-bf16", [90.1, 90.3], epoch_s=[2.0, 2.05])
    return folder


def edit_run(folder, change):
    """Change run.json in place."""
    path = folder / "run.json"
    run = json.loads(path.read_text())
    change(run)
    path.write_text(json.dumps(run))


def begin(run, day):
    """Claim that a run was started on another day, and so is another run, and that it has ended."""
    started = f"{day}T00:00:00+00:00"
    finished = f"{day}T01:00:00+00:00"
    edit_run(run, lambda info: info.update(started=started, finished=finished))


def place(row, placement):
    """Claim that a row was measured on another placement."""
    row.update(placement=placement)


def copy(
    source,
    target,
    *,
    device,
    architecture,
    faster=1.0,
    jitter=0.01,
    **more,
):
    """Copy a run as one of another device: steps ``faster`` and not all alike; ``more`` goes into
    its environment.
    """
    shutil.copytree(source, target)
    edit_device(target, name=device, architecture=architecture)
    edit_run(target, lambda run: run["environment"].update(more))
    edit_rows(target, lambda row: row.update(device=device, architecture=architecture))

    def hasten(row):
        _, _, replicate = row["trial"].rpartition("-r")
        off = jitter * (int(replicate) - 1)
        time_ms = float(row["time_ms"])
        row["time_ms"] = str(time_ms / (faster * (1 + off)))

    def hasten_epoch(row):
        for name in ("train_s", "elapsed_s"):
            seconds = float(row[name])
            row[name] = str(seconds / faster)

    edit_rows(target, hasten, "blocks.csv")
    edit_rows(target, hasten_epoch, "epochs.csv")
    return target


def edit_device(folder, **description):
    """Claim that a run's device is another one."""
    edit_run(folder, lambda run: run["environment"]["devices"][0].update(description))


READ = ("precision", "placement", "name")
"""Words that are read as more than names: what cannot be read is refused."""


def with_words(folder, text):
    """Write a run with rows in every file, and ``text`` in every field of each that may be any
    word.
    """
    original(folder)
    run = RunBuilder(folder)
    run.lost("speed", "amp-fp16", "failed", "why")
    run.append(block("mlp-0-b128-speed-r0", discarded="why"))
    run.result("numerics", "fp32")
    for kind, layer, name, value in (
        ("step", "", "loss", 2.0),
        ("gradient", "conv", "-10", 9.0),
        ("error", "conv", "gradient", 0.01),
        ("activation", "conv", "largest", 3.0),
    ):
        figure = {"kind": kind, "layer": layer, "name": name, "value": value}
        run.append(numeric("mlp-0-b128-numerics-fp32", **figure))
    for file in COLUMNS:
        if (folder / file).exists():
            fill(folder, file, text)
    words = dict.fromkeys(("host", "os", "python", "torch", "cuda", "cudnn", "driver"), text)
    edit_run(folder, lambda run: run["environment"].update(words))
    edit_device(folder, name=text, architecture=text)
    request = {"argv": [text]}
    claims = {"warnings": [text], "started": text, "version": text, "request": request}
    edit_run(folder, lambda run: run.update(claims))
    return folder


def fill(folder, file, text):
    """Put ``text`` into the fields of a CSV that may be any word."""
    free = []
    for name, field in COLUMNS[file].items():
        is_any_word = field.kind == "word" and not field.words
        if is_any_word and name not in READ:
            free.append(name)

    def put(row):
        for name in free:
            word = row.get(name, "")
            # "" is the whole model.
            if word or name != "layer":
                row[name] = text + word

    edit_rows(folder, put, file)
