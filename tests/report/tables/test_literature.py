"""Tables of the literature: ratios only where rows agree, the spread of a figure, and where it was read."""

import pandas as pd

from bench.report.tables.literature import literature_tables
from tests.report.tables.lines import lines
from tests.report.tables.published import figure


def tables(*rows):
    return {table.title: table for table in literature_tables(pd.DataFrame(rows))}


def test_only_rows_that_agree_are_compared_and_the_others_counted():
    found = tables(
        figure(samples_per_s=100.0, spread=3.0, memory_mb=800.0, note="hot; limited"),
        figure(samples_per_s=200.0, spread=8.0, memory_mb=600.0, precision="amp-fp16", note="limited"),
        figure(samples_per_s=500.0, precision="fp16-master", layout="channels_last"),
    )["Published comparisons of precisions"]
    (line,) = lines(found)
    assert (line["precisions"], line["times as fast"]) == ("fp32 → amp-fp16", "2.000")
    assert (line["its spread"], line["memory"], line["notes"]) == ("±5.0 %", "−25 %", "hot; limited")
    assert "not compared: 1." in found.footnotes[0]


def test_one_figure_of_several_sources_has_its_range_and_what_differs():
    found = tables(
        figure(samples_per_s=100.0, n_gpus=2.0),
        figure(samples_per_s=200.0, n_gpus=2.0, precision="amp-fp16", batch_size=256.0),
        figure(source="a paper", samples_per_s=100.0, n_gpus=2.0),
        figure(source="a paper", samples_per_s=150.0, n_gpus=2.0, precision="amp-fp16"),
    )["One figure, several sources"]
    shown = {line["source"]: (line["times as fast"], line["differs beside the precision"]) for line in lines(found)}
    assert shown == {"a post": ("2.000", "batch size"), "a paper": ("1.500", "nothing known")}
    assert {line["figure"] for line in lines(found)} == {"mlp on 2 × V100, fp32 → mixed precision"}
    assert {line["from all sources"] for line in lines(found)} == {"1.500 to 2.000"}


def test_each_source_has_its_addresses_and_dates():
    here = {"repository": "me/mine", "path": "a/b.md", "commit": "c0ffee"}
    found = tables(figure(**here, date="2020-01-02"), figure(**here, date="2019-05-06"), figure(path="https://a.paper"))
    assert [(line["where"], line["rows"]) for line in lines(found["Where the published figures are"])] == [
        ("https://github.com/me/mine/blob/c0ffee/a/b.md", "2"),
        ("https://a.paper", "1"),
    ]
    assert lines(found["Where the published figures are"])[0]["measured or published"] == "2019-05-06 to 2020-01-02"


def test_a_literature_without_pairs_or_without_the_matrix_has_no_such_tables():
    assert list(tables(figure(samples_per_s=1.0))) == ["Where the published figures are"]
