"""One quantity has one value: in every table of a report, in its answers and in JSON, of three GPUs."""

import re
from collections.abc import Iterator

import pytest

from bench.report import document
from bench.report.page import Report, compose
from bench.report.reading.load import load
from bench.report.render import answers, in_one
from bench.report.tables.table import Table
from perf.synthetic_fleet import Shape, write_run

NUMBER = re.compile(r"[−+]?[\d,]+(?:\.\d+)?")
MIB = 2**20
COLUMNS = {
    "step (ms)": ("step_ms", 1.0),
    "samples/s": ("samples_per_s", 1.0),
    "speedup [95 % interval]": ("speedup", 1.0),
    "step speedup [95 % interval]": ("speedup", 1.0),
    "epoch speedup [95 % interval]": ("epoch_speedup", 1.0),
    "peak memory (MiB, vs fp32)": ("peak_memory_bytes", MIB),
    "allocated (MiB)": ("peak_memory_bytes", MIB),
    "allocated (GiB)": ("peak_memory_bytes", 1024 * MIB),
    "time/epoch (s)": ("time_per_epoch_s", 1.0),
    "accuracy (%)": ("accuracy_pct", 1.0),
    "test accuracy (%) ± sd": ("accuracy_pct", 1.0),
    "difference (points) [90 % interval]": ("accuracy_change_points", 1.0),
    "vs fp32 [90 % interval], parity": ("accuracy_change_points", 1.0),
    "energy/step (J)": ("energy_j_per_step", 1.0),
    "TFLOP/s": ("tflops", 1.0),
    "share of ceiling (%)": ("pct_of_peak", 1.0),
    "faster": ("speedup", 1.0),
    "memory": ("memory_change_ratio", 0.01),
    "energy": ("energy_change_ratio", 0.01),
}
"""Headers of columns, each with the key of its figure in JSON and its unit."""
NAMES = (("precision", "use"), ("batch size", "batch"))
"""A precision and a batch size, and what tables of answers call them."""


def tables_of(report: Report) -> Iterator[tuple[str, Table]]:
    """Yield the tables of a report, each with the workload that it is of, if it is of one."""
    for section in report.sections:
        for table in section.tables:
            yield section.title, table
    for table in (*report.architectures, *answers(report.grid), in_one(report.grid)):
        assert table is not None
        yield table.title, table


@pytest.mark.slow
def test_every_figure_of_a_quantity_is_the_one_in_json_as_far_as_it_is_shown(tmp_path):
    runs = load([write_run(tmp_path / "run", Shape(gpus=["P100", "A100", "H100"], models=["resnet50", "mlp"]))])
    results = {}
    for row in document.report(runs)["results"]:
        for device in (row["where"], row["label"]):
            results[row["workload"], device, row["batch_size"], row["precision"]] = row
    seen, others = set(), []
    for workload, table in tables_of(compose(runs, tmp_path, figures="none")):
        for row in table.rows:
            cells = dict(zip(table.headers, row, strict=True))
            precision, batch = (cells.get(name, cells.get(short, "")) for name, short in NAMES)
            if "device" not in cells or not batch.isdecimal():
                continue
            of = cells.get("model", workload), cells["device"], int(batch), precision.split()[0]
            for head in cells.keys() & COLUMNS.keys():
                if figure := NUMBER.match(cells[head]):
                    key, unit = COLUMNS[head]
                    decimals = len(figure[0].partition(".")[2])
                    value = float(figure[0].replace(",", "").replace("−", "-"))
                    seen.add(head)
                    if abs(results[of][key] / unit - value) > 0.5001 * 10**-decimals:
                        others.append((table.title, of, head, figure[0], results[of][key] / unit))
    assert others == []
    assert COLUMNS.keys() - seen == set()  # or the test has lost sight of a table
