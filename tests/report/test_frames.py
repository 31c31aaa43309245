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
def results(tmp_path_factory):
    return load(original(tmp_path_factory.mktemp("runs") / "run"))


def test_a_run_with_a_single_row_has_the_same_columns_of_words_and_of_numbers(results, tmp_path):
    frames = load(RunBuilder(tmp_path / "run").lost("train", "fp32", "oom").folder)
    for name in ("summary", "trials", "epochs", "blocks", "telemetry"):
        single, several = getattr(frames, name), getattr(results, name)
        assert [*single] == [*several]
        assert [*single.select_dtypes("number")] == [*several.select_dtypes("number")]


def test_the_example_of_the_document_runs(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "analysing-results.md").read_text(), re.DOTALL
    )
    exec(compile(example, "analysing-results.md", "exec"), {})
    shown = capsys.readouterr().out
    epochs = pd.read_csv(ROOT / "results" / "resnet20-cpu-epyc-parity" / "epochs.csv")
    accuracies = epochs.loc[epochs["epoch"] == 5, "test_accuracy_pct"]
    assert "FASTER" in shown
    assert f"{accuracies.iloc[0]:.1f}" in shown


def test_the_reports_csv_is_the_summary(tmp_path):
    """Numbers keep all digits, and what is unknown stays so."""
    run, out = original(tmp_path / "run"), tmp_path / "out"
    report([run], out, figures="none")
    summary = load(run).summary
    words = dict.fromkeys(summary.select_dtypes("string"), "string")
    read = pd.read_csv(out / "summary.csv", dtype=words).fillna(dict.fromkeys(words, ""))
    assert "summary.csv" in json.loads((out / "files.json").read_text())
    pd.testing.assert_frame_equal(read, summary, check_exact=True, check_dtype=False)
