"""What a framework costs: Lightning's epochs beside those of the plain loop, seed by seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.report.tables.training import against_plain
from bench.spec.trial import SuiteRef
from tests.report.builders import RunBuilder


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    builder = RunBuilder(tmp_path / "run")
    for parameters, epoch_s in (
        ((("trainer", "plain"),), (4.0, 5.0, 6.0)),
        ((("trainer", "lightning"),), (5.0, 6.25, 7.5)),
        ((("devices", 2), ("trainer", "lightning")), (2.0, 2.5, 3.0)),
        ((("lr", 0.5), ("trainer", "lightning")), (1.0, 1.0, 1.0)),
    ):
        builder.suite = SuiteRef(name="cifar10_lightning", parameters=parameters)
        builder.train("fp32", [90.0, 91.0, 92.0], epoch_s=epoch_s)
        builder.train("amp-bf16", [90.0, 91.0, 92.0], epoch_s=[half / 2 for half in epoch_s])
    return builder


def test_lightnings_epochs_stand_beside_the_plain_loops_of_the_same_recipe_and_seeds(run: RunBuilder) -> None:
    runs = load([run.folder])
    summary = summarise(runs.trials)
    rows = {
        name: made.rows
        for name, group in summary.groupby("parameters")
        if (made := against_plain(runs.trials, group)) is not None
    }
    assert list(rows) == ["devices=2 trainer=lightning", "trainer=lightning"]
    assert [row[2:] for row in rows["trainer=lightning"]] == [
        ["fp32", "3", "5.000", "6.250", "1.250 [1.250, 1.250]"],
        ["amp-bf16", "3", "2.500", "3.125", "1.250 [1.250, 1.250]"],
    ]
    assert [row[-1] for row in rows["devices=2 trainer=lightning"]] == ["0.500 [0.500, 0.500]"] * 2
