"""Runs as typed frames, and the example in the document on them."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from bench.report import load, report
from tests.report.builders import RunBuilder
from tests.report.fleet import original

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return original(folder / "run")


def test_a_run_with_a_single_row_has_the_same_columns_of_words_and_of_numbers(run, tmp_path):
    lost = RunBuilder(tmp_path / "run").lost("train", "fp32", "oom")
    frames = load(lost.folder)
    results = load(run)
    for name in ("summary", "trials", "epochs", "blocks", "telemetry"):
        single = getattr(frames, name)
        several = getattr(results, name)
        assert [*single] == [*several]
        numbers = several.select_dtypes("number")
        assert [*single.select_dtypes("number")] == [*numbers]


def test_the_example_of_the_document_runs(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = Path("docs/analysing-results.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "analysing-results.md", "exec"), {})
    shown = capsys.readouterr().out
    epochs = pd.read_csv("results/resnet20-cpu-epyc-parity/epochs.csv")
    fifth = epochs[epochs["epoch"] == 5]
    accuracy = fifth["test_accuracy_pct"].iloc[0]
    assert "FASTER" in shown
    assert f"{accuracy:.1f}" in shown


def test_the_reports_csv_is_the_summary(run, tmp_path):
    """Numbers keep all digits, and what is unknown stays so."""
    report([run], tmp_path, figures="none")
    files = json.loads((tmp_path / "files.json").read_text())
    assert "summary.csv" in files
    summary = load(run).summary
    words = dict.fromkeys(summary.select_dtypes("string"), "")
    types = dict.fromkeys(words, "string")
    read = pd.read_csv(tmp_path / "summary.csv", dtype=types).fillna(words)
    pd.testing.assert_frame_equal(read, summary, check_exact=True, check_dtype=False)
