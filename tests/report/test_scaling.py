"""The scaling table: several devices over one of them, strong and weak, from throughputs that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.records import TrialResult
from bench.report.load import load
from bench.report.scaling import scaling
from bench.report.summary import summarise
from tests.report.builders import GPU, RunBuilder, timed


def measured(
    run: RunBuilder, placement: str, batch: int, paces: tuple[float, ...], **figures: float | tuple[float, ...]
) -> None:
    run.device = replace(GPU, placement=placement, name="2 × NVIDIA Test" if "+" in placement else GPU.name)
    for replicate, pace in enumerate(paces):
        each = {name: value[replicate] if isinstance(value, tuple) else value for name, value in figures.items()}
        speed = timed(1000 * batch / pace, batch, **each)
        run.add(
            run.trial("speed", ["fp32"], batch, replicate=replicate),
            TrialResult(precision="fp32", status="ok", speed=speed),
        )


def test_speedup_and_efficiency_over_one_device_at_the_same_batch_and_at_the_same_part(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0, 1000.0, 1000.0))
    measured(run, "0", 32, (800.0, 800.0, 800.0))
    measured(run, "0+1", 64, (1500.0, 1500.0, 1500.0), communication_pct=(10.0, 12.0, 14.0))
    runs = load([run.folder])
    made = scaling(summarise(runs.trials), runs.trials)
    assert made is not None
    assert [row[1:] for row in made.rows] == [
        ["fp32", "64", "strong", "1,500", "1,000", "1.500 [1.500, 1.500]", "75.0", "12 [6.9, 17]"],
        ["fp32", "64", "weak, 32 a device", "1,500", "800.0", "1.875 [1.875, 1.875]", "93.8", "12 [6.9, 17]"],
    ]


def test_devices_of_several_nodes_are_all_counted(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0, 1000.0, 1000.0))
    measured(run, "0", 16, (800.0, 800.0, 800.0))
    measured(run, "0+1@2", 64, (2400.0, 2400.0, 2400.0))
    measured(run, "0@2", 64, (1500.0, 1500.0, 1500.0))
    runs = load([run.folder])
    made = scaling(summarise(runs.trials), runs.trials)
    assert made is not None
    assert [(row[3], row[6].partition(" ")[0], row[7]) for row in made.rows] == [
        ("strong", "2.400", "60.0"),
        ("weak, 16 a device", "3.000", "75.0"),
        ("strong", "1.500", "75.0"),
    ]


def test_there_is_no_table_without_several_devices_or_without_one_of_them(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0+1", 64, (1500.0,))
    measured(run, "2", 64, (1000.0,))
    runs = load([run.folder])
    assert scaling(summarise(runs.trials), runs.trials) is None


def test_communication_in_one_process_has_no_interval(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0,))
    measured(run, "0+1", 64, (1500.0,), communication_pct=-0.5)
    runs = load([run.folder])
    made = scaling(summarise(runs.trials), runs.trials)
    assert made is not None
    assert [row[-1] for row in made.rows] == ["−0.50"]
    assert "slowest device" in made.about
