"""What the ``report.py`` of a phase gives is on every page, on the terminal and in JSON."""

import pytest

from bench.report import document, page, parts, render
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart
from bench.report.format import records
from bench.report.parts import OVERVIEW, Finding, Findings, PhaseReport
from bench.report.reading.load import load
from bench.report.tables.table import PRECISION, Entry, make_table
from bench.spec.phases import PHASES
from tests.report.builders import RunBuilder, text_of


def sums(material):
    return make_table("Sums", records(material.rows), [PRECISION])


def drawn(name):
    bar = Bar(x=(0, 1), low=0.1, high=0.9, tint="fp32")
    panel = chart.rows_panel("", Axis(), ["fp32"], [bar])
    return Chart(name=name, caption=name, about="", panels=[panel])


def findings(material):
    beside = Finding(subject="mlp", result="go on", table=sums(material))
    yield Findings(findings=[beside])
    behind = Finding(
        subject="fp32 on it",
        result="it is so",
        reasons=["Firstly.", "Secondly."],
    )
    yield Findings(
        findings=[behind],
        heading="Whence?",
        title="mlp",
        charts=[drawn("whence")],
        tables=[sums(material)],
    )


PART = PhaseReport(
    tables=[Entry(15, "Sums of all", lambda material: [sums(material), "A remark."])],
    charts=lambda _: [
        (OVERVIEW, drawn("over-all")),
        ("mlp", drawn("of-mlp")),
        ("mlp", "A figure is left out."),
    ],
    findings=findings,
    document=lambda runs: {"sums": len(runs.trials)},
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    for module in (page, document):
        monkeypatch.setattr(module, "parts", lambda: {"sums": PART})
    run = RunBuilder(tmp_path / "run")
    run.speed()
    return load([run.folder])


def assert_in_order(text, *parts):
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_tables_figures_and_findings_are_where_they_belong(run, tmp_path):
    out = tmp_path / "out"
    report = page.publish(run, out)
    head = (out / "report.md").read_text()
    assert "- mlp: go on." in head
    assert "**Whence?**" in head
    assert "- mlp: fp32 on it: it is so. Firstly. Secondly." in head
    assert "(over-all.svg)" in head
    assert "(whence.svg)" in head
    assert "(of-mlp.svg)" not in head
    html = out / "report.html"
    assert_in_order(
        html.read_text(),
        "go on",
        'data-name="over-all"',
        "Whence?",
        'data-name="whence"',
        "Firstly.",
        "Sums of all",
        "A remark.",
        "A figure is left out.",
        'data-name="of-mlp"',
    )
    assert text_of(html).count("| amp-bf16 |") >= 2
    printed = render.terminal(report, tmp_path)
    assert_in_order(printed, "Sums", "mlp: go on.", "Whence?", "- Secondly.")
    assert "Sums" in render.in_words(report.findings)


def test_its_keys_are_in_the_document(run):
    assert document.report(run)["sums"] == len(run.trials)


def test_parts_are_found_in_the_folders_in_the_order_of_the_phases():
    phases = [*PHASES]
    names = [*parts.parts()]
    assert names == sorted(names, key=phases.index)
    assert {"memory", "train"} <= {*names}


def test_each_table_has_a_place_of_its_own():
    places = [entry.place for entry in page.entries()]
    assert places == sorted({*places})
