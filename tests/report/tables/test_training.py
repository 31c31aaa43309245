"""What Lightning's Trainer adds to an epoch, seed by seed."""

from __future__ import annotations

from pathlib import Path

from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.report.tables.training import against_plain
from bench.spec.trial import SuiteRef
from tests.report.builders import RunBuilder


def test_lightnings_epochs_are_compared_with_the_plain_loops_of_the_same_recipe_and_seeds(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    for parameters, epoch_s in (
        ((("trainer", "plain"),), (4.0, 5.0, 6.0)),
        ((("trainer", "lightning"),), (5.0, 6.25, 7.5)),
        ((("devices", 2), ("trainer", "lightning")), (2.0, 2.5, 3.0)),
        ((("lr", 0.5), ("trainer", "lightning")), (1.0, 1.0, 1.0)),
    ):
        run.suite = SuiteRef(name="cifar10_lightning", parameters=parameters)
        run.train("fp32", [90.0, 91.0, 92.0], epoch_s=epoch_s)
        run.train("amp-bf16", [90.0, 91.0, 92.0], epoch_s=[half / 2 for half in epoch_s])
    trials = load([run.folder]).trials
    rows = {
        name: [row[2:] for row in table.rows]
        for name, group in summarise(trials).groupby("parameters")
        if (table := against_plain(trials, group)) is not None
    }
    assert rows == {
        "devices=2 trainer=lightning": [
            ["fp32", "3", "5.000", "2.500", "0.500 [0.500, 0.500]"],
            ["amp-bf16", "3", "2.500", "1.250", "0.500 [0.500, 0.500]"],
        ],
        "trainer=lightning": [
            ["fp32", "3", "5.000", "6.250", "1.250 [1.250, 1.250]"],
            ["amp-bf16", "3", "2.500", "3.125", "1.250 [1.250, 1.250]"],
        ],
    }
