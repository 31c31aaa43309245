"""JSON documents: their figures are those of the frames, and what is unknown or not finite is null
or left out.
"""

import json
from pathlib import Path

import pandas as pd
import pytest

from bench.cli.parser import parse
from bench.compare.comparison import compare
from bench.compare.document import document as of_comparison
from bench.report import document
from bench.report import load as frames
from bench.report.reading.load import load
from bench.results.records import Numeric
from bench.spec.errors import UsageError
from tests.conftest import call
from tests.report.ablations import whole
from tests.report.builders import RunBuilder, block
from tests.report.fleet import copy, original

ROOT = Path(__file__).resolve().parents[2]
SPEED = "mlp-0-b128-speed-r0"


def written(exported: dict) -> dict:
    """A document as a reader has it."""
    return json.loads(document.dumps(exported))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    """A run with every phase but inference, of which one seed diverged, and one of a ladder."""
    folder = original(tmp_path_factory.mktemp("runs") / "run")
    run = RunBuilder(folder).diverged("amp-bf16", seed=7).result("numerics", "fp32")
    endless = {"kind": "step", "step": 0, "layer": "", "name": "loss", "value": float("inf")}
    run.append(Numeric(trial="mlp-0-b128-numerics-fp32", precision="fp32", **endless))
    run.append(block(SPEED, round=20, steps=3, discarded="throttled"))
    whole(RunBuilder(folder.with_name("ladder")))
    return [folder, folder.with_name("ladder")]


@pytest.fixture(scope="module")
def exported(folders) -> dict:
    return written(document.report(load(folders)))


def of(rows: list[dict], **wanted: object) -> list[dict]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


@pytest.mark.parametrize("name", ["summary", "trials", "epochs", "blocks"])
def test_the_rows_of_a_frame_are_its_records(exported, folders, name):
    frame = getattr(frames(*folders), name)
    rows = exported["results" if name == "summary" else name]
    for row, line in zip(rows, frame.to_dict("records"), strict=True):
        for column, value in line.items():
            unknown = pd.isna(value) or value in ("", float("inf"))
            assert row.get(column) == (None if unknown else value), column


def test_what_is_unknown_of_a_trial_is_left_out_and_a_loss_that_is_not_finite_too(exported):
    (trial,) = of(exported["trials"], run="run", trial=SPEED, precision="fp32")
    assert trial["steady"] == "yes"
    assert "peak_allocated_bytes" not in trial
    blocks = of(exported["blocks"], run="run", trial=SPEED, precision="fp32")
    assert [block.get("discarded") for block in blocks][-2:] == [None, "throttled"]
    diverged = of(exported["epochs"], run="run", precision="amp-bf16", seed=7)
    assert [epoch.get("train_loss") for epoch in diverged] == [pytest.approx(1.35), None]


def test_a_comparison_is_a_document(tmp_path):
    old = original(tmp_path / "old")
    RunBuilder(old).lost("energy", "fp32", "unsupported")
    new = copy(old, tmp_path / "new", device="Card", architecture="Hopper", faster=0.7)
    exported = written(of_comparison(compare(old, new, fail_over=0.03)))
    row = exported["rows"][0]
    assert row["speed"]["verdict"] == "REGRESSED"
    assert row["speed"]["change"] == pytest.approx(1 / 0.7, rel=0.01)
    assert row["energy"] is None
    assert exported["failures"]


def test_json_goes_with_no_option_of_the_page():
    with pytest.raises(UsageError, match="--out"):
        parse(["report", "--json", "--out=there", "run"])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("report", "--json", "run"), '"peak_memory_bytes": 104857600'),
        (("list", "--json"), '"resnet20"'),
    ],
)
def test_what_is_for_programs_is_printed_and_nothing_is_written(tmp_path, words, part):
    RunBuilder(tmp_path / "run").memory("fp32", 100)
    done = call(*words, cwd=tmp_path)
    assert (done.returncode, part in done.stdout) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
