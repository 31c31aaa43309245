"""JSON documents: their figures are those of the frames, and what is unknown or not finite is null
or left out.
"""

import json

import pandas as pd
import pytest

from bench.cli.parser import parse
from bench.compare.comparison import compare
from bench.compare.document import document as of_comparison
from bench.report import document
from bench.report import load as frames
from bench.report.reading.load import load
from bench.spec.errors import UsageError
from tests.conftest import call
from tests.report.ablations import whole
from tests.report.builders import RunBuilder, block, numeric
from tests.report.fleet import copy, original


def written(exported):
    """A document as a reader has it."""
    return json.loads(document.dumps(exported))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run with every phase but inference, of which one seed diverged, and one of a ladder."""
    folder = tmp_path_factory.mktemp("runs")
    run = RunBuilder(original(folder / "run"))
    run.diverged("amp-bf16", seed=7)
    run.result("numerics", "fp32")
    run.append(numeric("mlp-0-b128-numerics-fp32", value=float("inf")))
    run.append(block("mlp-0-b128-speed-r0", round=20, steps=3, discarded="throttled"))
    ladder = whole(RunBuilder(folder / "ladder"))
    return [run.folder, ladder.folder]


@pytest.fixture(scope="module")
def exported(folders):
    runs = load(folders)
    return written(document.report(runs))


@pytest.mark.parametrize("name", ["summary", "trials", "epochs", "blocks"])
def test_the_rows_of_a_frame_are_its_records_with_null_or_nothing_for_the_unknown(
    exported, folders, name
):
    frame = getattr(frames(*folders), name)
    rows = exported["results" if name == "summary" else name]
    for row, line in zip(rows, frame.to_dict("records"), strict=True):
        for column, value in line.items():
            is_known = pd.notna(value) and value not in ("", float("inf"))
            if is_known:
                assert row[column] == value
            elif name == "summary":
                assert row[column] is None
            else:
                assert column not in row


def test_a_comparison_is_a_document(tmp_path):
    old = original(tmp_path / "old")
    RunBuilder(old).lost("energy", "fp32", "unsupported")
    new = copy(old, tmp_path / "new", device="Card", architecture="Hopper", faster=0.7)
    comparison = compare(old, new, fail_over=0.03)
    exported = written(of_comparison(comparison))
    row = exported["rows"][0]
    assert row["energy"] is None
    assert row["speed"]["verdict"] == "REGRESSED"
    assert row["speed"]["change"] == pytest.approx(1.43, rel=0.01)
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
    run = RunBuilder(tmp_path / "run")
    run.memory("fp32", 100)
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 0
    assert part in done.stdout
    assert [*tmp_path.iterdir()] == [run.folder]
