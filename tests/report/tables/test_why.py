"""The explanation of a precision as a terminal shows it."""

from __future__ import annotations

import pytest

from bench.report.tables import why as tables
from bench.report.tables.why import Why, short
from tests.report.analysis.test_explanation import CAUSES, plain


def why(found):
    cell = dict(found.cell) | {"batch_size": 64}
    one = type(found)(**{name: getattr(found, name) for name in found.__slots__} | {"cell": cell})
    return Why(workload="mlp", where="GPU 0", one=one, memory=None)


def test_the_table_has_each_class_that_matters_and_adds_up():
    found = why(plain(arm={"other products": 24.0, "casts and layout": 6.0, "optimizer": 0.1, "idle": 10.0}))
    rows = {row[0]: row[1:] for row in short(found).rows}
    assert rows["casts and layout"] == ["0.00", "6.00", "+6.00"]
    assert "communication" not in rows
    parts = [name for name in rows if name not in ("all, profiled", "the step, not profiled")]
    for column in (0, 1):
        assert sum(float(rows[name][column]) for name in parts) == pytest.approx(
            float(rows["all, profiled"][column]), rel=0.02
        )


def test_reasons_are_sentences_and_techniques_are_named_once():
    found = why(plain(**CAUSES["launch-bound"]))
    assert found.reasons[0].startswith("Launching limits it")
    assert found.reasons[-1] == "Worth trying: compile."
    assert len(why(plain()).reasons) == 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    tables.show([why(plain())])
    lines = capsys.readouterr().out.split("\n")
    assert max(len(line.rstrip()) for line in lines if "  " in line) <= width
