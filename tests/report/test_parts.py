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


def made(material):
    return make_table("Sums", records(material.rows), [PRECISION])


def drawn(name):
    bar = Bar(x=(0, 1), low=0.1, high=0.9, tint="fp32")
    return Chart(
        name=name, caption=name, about="", panels=[chart.rows_panel("", Axis(), ["fp32"], [bar])]
    )


def findings(material):
    beside = Finding(subject="mlp", result="go on", table=made(material))
    yield Findings(findings=[beside])
    behind = Finding(subject="fp32 on it", result="it is so", reasons=["Firstly.", "Secondly."])
    yield Findings(
        findings=[behind],
        heading="Whence?",
        title="mlp",
        charts=[drawn("whence")],
        tables=[made(material)],
    )


PART = PhaseReport(
    tables=(Entry(15, "Sums of all", lambda material: [made(material), "A remark."]),),
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
    return load([RunBuilder(tmp_path / "run").speed().folder])


def test_tables_figures_and_findings_are_where_they_belong(run, tmp_path):
    report = page.publish(run, tmp_path / "out")
    head, html = ((tmp_path / "out" / name).read_text() for name in ("report.md", "report.html"))
    assert "- mlp: go on." in head
    assert "**Whence?**" in head
    assert "- mlp: fp32 on it: it is so. Firstly. Secondly." in head
    assert [name in head for name in ("(over-all.svg)", "(whence.svg)")] == [True, True]
    assert "(of-mlp.svg)" not in head
    order = [
        "go on",
        'data-name="over-all"',
        "Whence?",
        'data-name="whence"',
        "Firstly.",
        "Sums of all",
        "A remark.",
        "A figure is left out.",
        'data-name="of-mlp"',
    ]
    places = [html.index(text) for text in order]
    assert places == sorted(places)
    assert text_of(tmp_path / "out" / "report.html").count("| amp-bf16 |") >= 2
    said = render.terminal(report, tmp_path)
    places = [said.index(text) for text in ("Sums", "mlp: go on.", "Whence?", "- Secondly.")]
    assert places == sorted(places)
    assert "Sums" in render.in_words(report.findings)


def test_its_keys_are_in_the_document(run):
    assert document.report(run)["sums"] == len(run.trials)


def test_parts_are_found_in_the_folders_in_the_order_of_the_phases():
    names = list(parts.parts())
    assert names == [name for name in PHASES if name in names]
    assert {"memory", "train"} <= {*names}


def test_each_table_has_a_place_of_its_own():
    places = [entry.place for entry in page.entries()]
    assert places == sorted({*places})
