"""Runs as typed frames, and the example in the document on them."""

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from bench.report import load, report
from bench.report.exports.data import DTYPES
from tests.report.builders import RunBuilder
from tests.report.fleet import original

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return load(original(tmp_path_factory.mktemp("runs") / "run"))


def dtypes(frame: pd.DataFrame) -> dict[str, str]:
    return {name: str(dtype) for name, dtype in frame.dtypes.items()}


@pytest.mark.parametrize("name", DTYPES)
def test_every_column_has_its_declared_dtype(results, name):
    assert dtypes(getattr(results, name)) == DTYPES[name]


def test_a_run_with_a_single_row_has_the_same_columns_and_dtypes(tmp_path):
    RunBuilder(tmp_path / "b").lost("train", "fp32", "oom")
    frames = load(tmp_path / "b")
    assert {name: dtypes(getattr(frames, name)) for name in DTYPES} == DTYPES
    RunBuilder(tmp_path / "a").memory("fp32", 100)
    assert load(str(tmp_path)).summary["run"].tolist() == ["a", "b"]  # a folder of runs is its runs


def test_the_summary_says_what_was_measured(results):
    rows = results.summary.set_index("precision")
    assert rows.loc["amp-bf16", "speedup"] == pytest.approx(2.0, abs=0.01)
    assert rows.loc["amp-bf16", "peak_memory_bytes"] == 100 * 2**20
    assert rows.loc["amp-bf16", "accuracy_change_points"] == pytest.approx(0.0, abs=1e-9)
    assert rows.loc["fp32", "speedup"] is pd.NA or pd.isna(rows.loc["fp32", "speedup"])
    assert rows.loc["fp32", "seeds"] == 2


def test_the_example_of_the_document_runs(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "analysing-results.md").read_text(), re.DOTALL)
    exec(compile(example, "analysing-results.md", "exec"), {})
    shown = capsys.readouterr().out
    with (ROOT / "results" / "resnet20-cpu-epyc-parity" / "epochs.csv").open() as file:
        accuracies = [row["test_accuracy_pct"] for row in csv.DictReader(file) if row["epoch"] == "5"]
    assert "FASTER" in shown
    assert f"{float(accuracies[0]):.1f}" in shown


def test_the_reports_csv_is_the_summary(tmp_path):
    """Numbers keep all digits, and what is unknown stays so."""
    run, out = original(tmp_path / "run"), tmp_path / "out"
    report([run], out, figures="none")
    read = pd.read_csv(out / "summary.csv", dtype=DTYPES["summary"])
    assert "summary.csv" in json.loads((out / "files.json").read_text())
    words = {name: "" for name, kind in DTYPES["summary"].items() if kind == "string"}
    pd.testing.assert_frame_equal(read.fillna(words), load(run).summary, check_exact=True)
