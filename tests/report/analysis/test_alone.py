"""At a power limit, and where the two differ, the speedup alone is the one that counts, and both
are shown.
"""

import math

import pytest

from bench.report import report
from tests.report.builders import capped

IN_TURNS = 1.5


@pytest.mark.parametrize(
    ("is_capped", "alone", "word", "doubts"),
    [
        (True, 1.49, "FASTER", "alone"),
        (True, 1.06, "FASTER", "alone"),
        (True, 1.03, "INCONCLUSIVE", "alone"),
        (True, 0.9, "SLOWER", "alone"),
        (False, 1.47, "FASTER", ""),
        (False, 1.44, "FASTER", "alone"),
        (False, 1.56, "FASTER", "alone"),
        (True, None, "FASTER", "shared clock"),
    ],
)
def test_the_speedup_alone_counts_at_the_power_limit_and_where_the_two_differ(
    run, is_capped, alone, word, doubts
):
    capped(run, IN_TURNS, is_capped=is_capped).drew(1000, "fp32")
    if alone:
        run.drew(1000 * alone)
    row = run.row()
    is_alone = doubts == "alone"
    speedup = alone if is_alone else IN_TURNS
    assert row["speedup"] == pytest.approx(speedup)
    assert row["speed_verdict"] == word
    assert row["doubts"] == doubts
    assert math.isnan(row["speedup_low"]) == is_alone
    assert math.isnan(row["turns_speedup"]) != is_alone
    answer = run.answer()
    assert (answer.precision == "amp-bf16") == (word == "FASTER")


@pytest.mark.parametrize(
    ("speedup", "word"),
    [
        (1.12, "INCONCLUSIVE"),
        (1.3, "FASTER"),
        (0.9, "SLOWER"),
    ],
)
def test_without_the_energy_of_fp32_there_is_none_alone_and_faster_needs_more_than_the_bias(
    run, speedup, word
):
    row = capped(run, speedup).drew(1300).row()
    assert row["speedup"] == pytest.approx(speedup)
    assert row["speed_verdict"] == word
    assert row["doubts"] == "shared clock"


def test_precisions_as_fast_alone_tie_whichever_is_faster_in_turns(run):
    gains = {
        "amp-fp16": [1.5, 1.51, 1.52],
        "amp-bf16": [1.4, 1.41, 1.42],
    }
    run.together(gains)
    run.drew(1000, "fp32").drew(1210, "amp-fp16").drew(1190)
    answer = run.answer()
    assert answer.precision == "amp-bf16"  # which needs no loss scaling
    assert answer.ties == ["amp-fp16"]


def test_a_reader_is_shown_both(run, tmp_path):
    capped(run, IN_TURNS).drew(1000, "fp32").drew(1300)
    report([run.folder], tmp_path, figures="none")
    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "1.300; in turns 1.500 [1.4" in text
    assert "each alone (in turns 1.500" in run.answer().evidence
