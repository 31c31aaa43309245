"""Figures in the format of another tool, read as that tool reads them."""

from __future__ import annotations

import json
import re

import pytest

from bench.report.exports.formats import github_action_benchmark
from bench.report.reading.load import load
from tests.conftest import call
from tests.report import fleet
from tests.report.ablations import whole
from tests.report.builders import RunBuilder
from tests.report.fleet import original

AWKWARD = 'a "quoted" \\ name'


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of an awkwardly named suite, of which one seed diverged, and the same on another device."""
    folder = original(tmp_path_factory.mktemp("runs") / "run", suite=AWKWARD)
    RunBuilder(folder, suite=AWKWARD).diverged("amp-bf16", seed=7)
    fleet.edit_rows(folder, lambda row: row.update(started="2026-01-01T00:00:00+00:00"))
    return load([folder, fleet.copy(folder, folder.with_name("other"), device="Card 2", architecture="Volta")])


def test_a_benchmark_action_finds_a_name_a_unit_and_a_value_of_which_smaller_is_better(runs):
    entries = json.loads(github_action_benchmark(runs))
    assert len({entry["name"] for entry in entries}) == len(entries) == 8
    for entry in entries:
        assert {"name", "unit", "value"} <= entry.keys() <= {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], float | int)
        assert not isinstance(entry["value"], bool)
    step = next(entry for entry in entries if entry["name"].endswith("fp32: step"))
    assert (step["unit"], step["value"]) == ("ms", pytest.approx(10.0))
    # How the action reads a range, src/extractRangeInfo.ts: a prefix, and a number of two characters or more.
    ranges = [re.match(r"(\+-|±)\s*(\d.+)", entry["range"]) for entry in entries if "range" in entry]
    assert ranges
    assert all(float(match[2]) >= 0 for match in ranges)


def test_runs_of_ablations_alone_are_refused_instead_of_exported_as_nothing(tmp_path):
    folder = whole(RunBuilder(tmp_path / "ladder")).folder
    done = call("report", "--export", "github-action-benchmark", folder, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ablations only" in done.stderr


def test_a_training_without_a_test_set_or_a_time_and_a_search_that_found_no_batch_are_exported(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [None], test_loss=None, regression=True)
    run.train("fp8-tensorwise:emulated=on", [90.0]).lost("fit", "fp32", "oom").lost("speed", "fp32", "failed").lost(
        "train", "fp32", "oom", batch=512
    )
    fleet.edit_rows(run.folder, lambda row: row.update(test_s="", test_loss="", test_accuracy_pct=""), "epochs.csv")
    fleet.edit_rows(run.folder, lambda row: row.update(started="2026-01-01T00:00:00+00:00"))
    assert json.loads(github_action_benchmark(load([run.folder]))) == []


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("report", "--json", "run"), '"peak_memory_bytes": 104857600'),
        (("report", "--export=github-action-benchmark", "run"), "peak memory"),
        (("list", "--json"), '"resnet20"'),
    ],
)
def test_what_is_for_programs_is_printed_and_nothing_is_written(tmp_path, words, part):
    RunBuilder(tmp_path / "run").memory("fp32", 100)
    done = call(*words, cwd=tmp_path)
    assert (done.returncode, part in done.stdout) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
