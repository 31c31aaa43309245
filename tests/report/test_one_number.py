"""One quantity has one value: in report.md, details.md, the page, the terminal and JSON, of three GPUs."""

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.report import report, terminal
from bench.report.exports import document
from bench.report.reading.load import load
from perf.synthetic_fleet import Shape, write_run

NUMBER = re.compile(r"([−+]?[\d,]+(?:\.\d+)?)( (?:GiB|MiB|s|%))?")
PEAK = re.compile(r"([\d,.]+) MiB")
MIB = 2**20
COLUMNS = {
    "step (ms)": ("step_ms", 1.0),
    "p50 (ms)": ("step_p50_ms", 1.0),
    "samples/s": ("samples_per_s", 1.0),
    "throughput (samples/s)": ("samples_per_s", 1.0),
    "speedup [95 % interval]": ("speedup", 1.0),
    "step speedup [95 % interval]": ("speedup", 1.0),
    "epoch speedup [95 % interval]": ("epoch_speedup", 1.0),
    "peak memory (MiB, vs fp32)": ("peak_memory_bytes", MIB),
    "peak (MiB)": ("peak_memory_bytes", MIB),
    "peak (GiB)": ("peak_memory_bytes", 1024 * MIB),
    "allocated (MiB)": ("peak_memory_bytes", MIB),
    "allocated (GiB)": ("peak_memory_bytes", 1024 * MIB),
    "time/epoch (s)": ("epoch_s", 1.0),
    "accuracy (%)": ("accuracy_pct", 1.0),
    "test accuracy (%) ± sd": ("accuracy_pct", 1.0),
    "difference (points) [90 % interval]": ("accuracy_change_points", 1.0),
    "vs fp32 [90 % interval], parity": ("accuracy_change_points", 1.0),
    "energy/step (J)": ("energy_j_per_step", 1.0),
    "TFLOP/s": ("tflops", 1.0),
    "share of ceiling (%)": ("pct_of_peak", 1.0),
    "A/A noise (%)": ("noise_ratio", 0.01),
    "faster": ("speedup", 1.0),
    "memory": ("memory_change_ratio", 0.01),
    "energy": ("energy_change_ratio", 0.01),
}
"""Headers of columns, each with the key of its figure in JSON and its unit."""


class Shown(NamedTuple):
    """A figure as it is shown: where, of what, in which unit, and its text."""

    place: str
    arm: tuple[str, str, int, str]
    key: str
    unit: float
    text: str


class Fleet(NamedTuple):
    folder: Path
    terminal: str
    document: dict[str, Any]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("fleet")
    run = write_run(folder / "run", Shape(gpus=["P100", "A100", "H100"], models=["resnet50", "mlp"]))
    contents = report([run], folder, figures="none")
    return Fleet(folder, terminal(contents, folder), document.report(load([run])))


def in_rows(place: str, workload: str, heads: list[str], rows: list[list[str]]) -> Iterator[Shown]:
    """Yield the figures of a table with a row for each arm."""
    named = {"use": "precision", "batch": "batch size"}
    for row in rows:
        cells = {named.get(head, head): cell for head, cell in zip(heads, row, strict=True)}
        if {"device", "batch size", "precision"} <= cells.keys() and cells["batch size"].isdecimal():
            arm = (
                cells.get("model", workload),
                cells["device"],
                int(cells["batch size"]),
                cells["precision"].split()[0],
            )
            for head, cell in cells.items():
                if head in COLUMNS and (figure := NUMBER.match(cell)):
                    yield Shown(place, arm, *COLUMNS[head], figure[1])
                if head == "memory" and (peak := PEAK.search(cell)):
                    yield Shown(place, arm, "peak_memory_bytes", MIB, peak[1])


def in_markdown(place: str, text: str, workloads: set[str]) -> Iterator[Shown]:
    workload = ""
    for block in text.split("\n\n"):
        lines = block.replace("**", "").strip().splitlines()
        title = re.search(r"^(?:## |\*\*)(\w+)(?:\*\*)?$", block, re.MULTILINE)
        if title and title[1] in workloads:
            workload = title[1]
        elif lines and lines[0].startswith("|"):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            yield from in_rows(place, workload, rows[0], rows[2:])


def in_page(text: str, workloads: set[str]) -> Iterator[Shown]:
    workload, unfolded = "", ("", "")
    part = re.compile(
        r"<summary><bdi>(?P<section>.*?)</bdi>|<table>(?P<table>.*?)</table>|(?P<line><tr class=\"line\".*?</tr>)",
        re.DOTALL,
    )
    for found in part.finditer(text):
        if found["section"]:
            workload = html.unescape(found["section"])
        elif found["table"]:
            caption = re.search(r"<caption>(.*?)</caption>", found["table"])
            of = caption[1] if caption and caption[1] in workloads else workload
            rows = [
                [html.unescape(re.sub(r"<.*?>", "", cell)) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)]
                for row in re.findall(r"<tr.*?>(.*?)</tr>", found["table"], re.DOTALL)
            ]
            if caption and caption[1] == "Every batch size":  # of the line that it is unfolded from
                of, rows = unfolded[0], [[unfolded[1], *row] for row in rows]
                rows[0][0] = "device"
            yield from in_rows("page", of, rows[0], rows[1:])
        else:
            line = found["line"]
            cells = dict(re.findall(r'<td[^>]*data-label="(\w+)"[^>]*>(.*?)</td>', line, re.DOTALL))
            cells = {name: re.sub(r"<.*?>", "", cell).strip() for name, cell in cells.items()}
            where = html.unescape(re.search(r'data-where="(.*?)"', line)[1])
            of = html.unescape(re.search(r'data-workload="(.*?)"', line)[1])
            unfolded = of, where
            batch = int(cells.pop("batch").split()[0])
            use = re.search(r'class="chip .*?<bdi>(.*?)</bdi>', line)[1]
            yield from in_rows(
                "grid", of, ["device", "batch size", "precision", *cells], [[where, str(batch), use, *cells.values()]]
            )
            if ends := re.match(r"([\d,.]+) → ([\d,.]+) s", cells.get("epoch", "")):
                for precision, figure in zip(("fp32", use), ends.groups(), strict=True):
                    yield Shown("grid", (of, where, batch, precision), "epoch_s", 1.0, figure)


def in_terminal(text: str) -> Iterator[Shown]:
    workload, heads = "", list[str]()
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) > 3 and cells[0] == "device":
            heads = cells
        elif len(cells) == len(heads):
            yield from in_rows("terminal", workload, heads, [cells])
        elif re.fullmatch(r"\w+", line):
            workload = line


@pytest.mark.slow
def test_every_figure_of_a_quantity_is_the_one_in_json_as_far_as_it_is_shown(fleet: Fleet) -> None:
    results, workloads = {}, {row["workload"] for row in fleet.document["results"]}
    for row in fleet.document["results"]:
        for device in (row["where"], row["label"], row["where"].removeprefix("NVIDIA ").removeprefix("Tesla ")):
            results[row["workload"], device, row["batch_size"], row["precision"]] = row
    page = (fleet.folder / "report.html").read_text()
    shown = [
        figure
        for name in ("report.md", "details.md")
        for figure in in_markdown(name, (fleet.folder / name).read_text(), workloads)
    ]
    shown += [*in_page(page, workloads), *in_terminal(fleet.terminal)]
    others = defaultdict(list)
    for place, arm, key, unit, text in shown:
        value = float(text.replace(",", "").replace("−", "-"))
        decimals = len(text.partition(".")[2])
        if abs(results[arm][key] / unit - value) > 0.5001 * 10**-decimals:
            others[key].append((place, arm, text, results[arm][key] / unit))
    assert others == {}
    places = Counter((figure.place, figure.key) for figure in shown)
    for place, keys in EXPECTED.items():
        assert {key for where, key in places if where == place} >= keys, place


EXPECTED = {
    "report.md": {"step_ms", "samples_per_s", "speedup", "peak_memory_bytes", "memory_change_ratio", "epoch_s"}
    | {"accuracy_pct", "accuracy_change_points"},
    "details.md": {"step_ms", "samples_per_s", "speedup", "peak_memory_bytes", "epoch_s", "epoch_speedup"}
    | {"accuracy_pct", "accuracy_change_points", "energy_j_per_step", "pct_of_peak"},
    "page": {"step_ms", "samples_per_s", "speedup", "peak_memory_bytes", "epoch_s", "accuracy_pct"},
    "grid": {"speedup", "memory_change_ratio", "peak_memory_bytes", "energy_change_ratio", "epoch_s"},
    "terminal": {"speedup", "memory_change_ratio", "energy_change_ratio"},
}
"""The quantities that each place is read for: with fewer, the test has lost sight of a table."""
