"""A swept parameter: its values in one table and one plot."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.phases.speed.report import scaling
from bench.phases.speed.sweeps import tables
from bench.report.analysis.summary import summarise
from bench.report.page import compose
from bench.report.reading.load import load
from bench.report.tables.table import Table, material_of
from bench.results.records import TrialResult
from bench.results.store import Store
from bench.spec.trial import SuiteRef
from tests.report.builders import GPU, RunBuilder, environment, timed
from tests.report.tables.lines import column, lines

FIRST = "× step of the first value"


def run_of(folder, sweep, *variants):
    """Write a run with a speed cell for each variant: its parameters, and the step times of fp32 in
    its processes.
    """
    run = RunBuilder(folder)
    info = json.loads((folder / "run.json").read_text())
    info["request"] = {"sweep": list(sweep.items())}
    (folder / "run.json").write_text(json.dumps(info))
    for parameters, steps_ms in variants:
        run.suite = SuiteRef(name="mlp", parameters=parameters)
        size = dict(parameters).get("batch_size", 512)
        run.alone("fp32", steps_ms, batch=size)
        run.alone("amp-fp16", [step / 2 for step in steps_ms], batch=size)
    return run


def swept_in(run):
    runs = load([run.folder])
    return tables(summarise(runs.trials), runs)


ALIGNED, MISALIGNED = [10.0, 10.1, 9.9], [15.0, 15.2, 14.9]


def widths(width, steps_ms=ALIGNED):
    """Return a variant of a width."""
    return (("width", width),), steps_ms


def test_each_value_stands_against_the_first(tmp_path):
    # The first measured is the first.
    variants = [widths(4097, MISALIGNED), widths(4096, ALIGNED)]
    (table,) = swept_in(run_of(tmp_path / "run", {"width": ["4097", "4096"]}, *variants))
    order = [("4097", "fp32"), ("4097", "amp-fp16"), ("4096", "fp32"), ("4096", "amp-fp16")]
    assert [(line["width"], line["precision"]) for line in lines(table)] == order
    assert column(table, FIRST)[:3] == ["first", "first", "0.667"]
    assert column(table, "speedup [95 % interval]")[3].startswith("2.000 [")
    assert "batch size" in table.headers


def test_batch_sizes_that_were_swept_stand_together(tmp_path):
    variants = [((("batch_size", 512),), ALIGNED), ((("batch_size", 513),), MISALIGNED)]
    (table,) = swept_in(run_of(tmp_path / "run", {"batch_size": ["512", "513"]}, *variants))
    assert "batch size" not in table.headers
    assert column(table, "batch_size") == ["512", "512", "513", "513"]
    assert column(table, FIRST)[-1] == "1.500"


def test_a_product_is_compared_along_each_parameter_with_the_others_alike(tmp_path):
    variants = []
    for width, depth, step_ms in (
        (4096, 2, 10.0),
        (4096, 3, 15.0),
        (4097, 2, 20.0),
        (4097, 3, 45.0),
    ):
        parameters = (("depth", depth), ("width", width))
        variants.append((parameters, [step_ms, step_ms * 1.01]))
    run = run_of(tmp_path / "run", {"width": ["4096", "4097"], "depth": ["2", "3"]}, *variants)
    of_width, of_depth = swept_in(run)
    assert (of_width.title, of_depth.title) == ("Sweep of mlp's width", "Sweep of mlp's depth")
    changes = {}
    for line in lines(of_width):
        if line["precision"] == "fp32":
            changes[line["other parameters"], line["width"]] = line[FIRST]
    assert changes == {
        ("depth=2", "4096"): "first",
        ("depth=2", "4097"): "2.000",
        ("depth=3", "4096"): "first",
        ("depth=3", "4097"): "3.000",
    }


def test_what_was_only_set_is_no_sweep_and_neither_is_a_single_value_nor_what_was_not_timed(
    tmp_path,
):
    variants = [((("lr", 0.1), ("width", 8)), ALIGNED), ((("lr", 0.1), ("width", 16)), ALIGNED)]
    assert len(swept_in(run_of(tmp_path / "a", {"width": ["8", "16"]}, *variants))) == 1
    assert swept_in(run_of(tmp_path / "b", {}, *variants)) == []
    assert swept_in(run_of(tmp_path / "c", {"width": ["8"]}, variants[0])) == []
    run = run_of(tmp_path / "run", {"width": ["8", "16"]})
    run.lost("memory", "fp32", "failed", "it broke", ablation=True)
    assert swept_in(run) == []  # a ladder alone
    run.suite = SuiteRef(name="mlp", parameters=(("width", 8),))
    run.lost("memory", "fp32", "failed", "it broke")
    assert swept_in(run) == []


def test_sweeps_have_a_section_of_their_own(tmp_path):
    run = run_of(
        tmp_path / "a",
        {"width": ["8", "1024"]},
        *[((("width", width),), ALIGNED) for width in (8, 1024)],
    )
    report = compose(material_of(load([run.folder])))
    assert [*report.sections][1:4] == ["Sweeps", "mlp (width=1024)", "mlp (width=8)"]
    assert [table.title for table in report.sections["Sweeps"].tables] == ["Sweep of mlp's width"]


# The scaling table: several devices over one of them, strong and weak, from throughputs that are
# known.


CPU = replace(GPU, kind="cpu", name="Test CPU", architecture="CPU")


def measured(
    run: RunBuilder,
    placement: str,
    batch: int,
    paces: Sequence[float],
    *,
    techniques: tuple[str, ...] = (),
) -> None:
    on = CPU if placement.startswith("cpu") else GPU
    run.device = replace(on, placement=placement)
    for replicate, pace in enumerate(paces):
        speed = timed(1000 * batch / pace, batch)
        trial = run.trial("speed", ["fp32"], batch, replicate=replicate)
        trial = replace(trial, cell=replace(trial.cell, techniques=techniques))
        run.add(trial, TrialResult(arm="fp32", status="ok", row=speed))


def claim(run: RunBuilder, **changed: Any) -> None:
    described = asdict(replace(environment(run.device), **changed))
    store = Store(run.folder)
    store.write_run(
        {"environment": described, "request": {"suites": [{"name": "mlp", "digest": "aaa"}]}}
    )


def tables_of(*folders: Path) -> list[Table]:
    summary = summarise(load(list(folders)).trials)
    made = [scaling(rows, summary) for _, rows in summary.groupby("workload", sort=False)]
    return [table for table in made if table is not None]


def table_of(*folders: Path) -> Table:
    (table,) = tables_of(*folders)
    return table


def test_speedup_and_efficiency_over_one_device_at_the_same_batch_and_at_the_same_part(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0, 1000.0, 1000.0))
    measured(run, "0", 32, (800.0, 800.0, 800.0))
    measured(run, "0+1", 64, (1500.0, 1500.0, 1500.0))
    table = table_of(run.folder)
    strong, weak = table.rows
    joint = ["fp32", "64", "strong", "1,500"]
    assert strong[1:] == [*joint, "GPU 0", "1,000", "1.500 [1.500, 1.500]", "75.0"]
    joint = ["fp32", "64", "weak, 32 a device", "1,500"]
    assert weak[1:] == [*joint, "GPU 0", "800.0", "1.875 [1.875, 1.875]", "93.8"]
    words = [column.header for column in table.columns if column.align == "left"]
    assert words == ["devices", "precision", "scaling", "one device"]


def test_devices_of_several_nodes_are_all_counted(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0, 1000.0, 1000.0))
    measured(run, "0", 16, (800.0, 800.0, 800.0))
    measured(run, "0+1@2", 64, (2400.0, 2400.0, 2400.0))
    measured(run, "0@2", 64, (1500.0, 1500.0, 1500.0))
    claim(run)
    scalings = []
    for row in table_of(run.folder).rows:
        speedup, *_interval = row[7].split()
        scalings.append((row[3], speedup, row[8]))
    assert scalings == [
        ("strong", "2.400", "60.0"),
        ("weak, 16 a device", "3.000", "75.0"),
        ("strong", "1.500", "75.0"),
    ]


def test_the_reference_is_a_device_of_the_same_run(tmp_path: Path) -> None:
    other, run = RunBuilder(tmp_path / "other"), RunBuilder(tmp_path / "run")
    measured(other, "0", 64, (500.0,) * 3)
    claim(other)
    measured(run, "0+1", 64, (1500.0,))
    assert tables_of(other.folder, run.folder) == []
    measured(run, "0", 64, (1000.0, 1000.0))
    claim(run)
    (row,) = table_of(other.folder, run.folder).rows
    assert row[5:7] == ["GPU 0", "1,000"]


def test_another_device_of_the_run_and_another_batch_size_are_no_scaling(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "2", 64, (1000.0,))
    measured(run, "0", 48, (1000.0,))
    measured(run, "0+1", 64, (1500.0,))
    assert tables_of(run.folder) == []


def test_what_means_nothing_on_one_device_does_not_keep_it_from_being_compared(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0,), techniques=("channels-last",))
    measured(run, "0", 64, (700.0,))
    measured(run, "0+1", 64, (1500.0,), techniques=("channels-last", "sync-bn"))
    (row,) = table_of(run.folder).rows
    assert row[5:7] == ["GPU 0", "1,000"]


def test_on_a_cpu_there_is_no_efficiency(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "cpu", 64, (1000.0, 1000.0))
    measured(run, "cpu+cpu", 64, (900.0, 900.0), techniques=("sync-bn",))
    table = table_of(run.folder)
    assert table.rows[0][0] == "Test CPU (cpu+cpu)"
    assert [row[5:9] for row in table.rows] == [["cpu", "1,000", "0.900 [0.900, 0.900]", "–"]]
