"""At a power limit, and where the two differ, the speedup alone is the one that counts, and both
are shown.
"""

from pathlib import Path

import pytest

from bench.report import report
from tests.report.builders import RunBuilder, capped

IN_TURNS = 1.5


def measured(
    folder: Path, alone: float | None, *, is_capped: bool, turns: float = IN_TURNS
) -> RunBuilder:
    """A run with this speedup in turns, and this one of a window of each precision alone."""
    run = capped(RunBuilder(folder), turns, is_capped=is_capped).drew(1000, "fp32")
    return run if alone is None else run.drew(1000 * alone)


@pytest.mark.parametrize(
    ("is_capped", "alone", "speedup", "word"),
    [
        (True, 1.49, 1.49, "FASTER"),
        (True, 1.3, 1.3, "FASTER"),
        (True, 1.06, 1.06, "FASTER"),
        (True, 1.03, 1.03, "INCONCLUSIVE"),
        (True, 1.0, 1.0, "INCONCLUSIVE"),
        (True, 0.9, 0.9, "SLOWER"),
        (False, 1.47, IN_TURNS, "FASTER"),
        (False, 1.44, 1.44, "FASTER"),
        (False, 1.56, 1.56, "FASTER"),
        (False, 0.9, 0.9, "SLOWER"),
        (True, None, IN_TURNS, "FASTER"),
    ],
)
def test_the_speedup_alone_counts_at_the_power_limit_and_where_the_two_differ(
    tmp_path, is_capped, alone, speedup, word: str
):
    run = measured(tmp_path / "run", alone, is_capped=is_capped)
    row, is_alone = run.row(), speedup != IN_TURNS
    assert (row.speedup, row.speed_verdict) == (pytest.approx(speedup), word)
    assert row.doubts == ("alone" if is_alone else "shared clock" if is_capped else "")
    assert list(row[["speedup_low", "turns_speedup"]].isna()) == [is_alone, not is_alone]
    assert run.answer().precision == ("amp-bf16" if word == "FASTER" else "fp32")


@pytest.mark.parametrize(
    ("speedup", "word"), [(1.12, "INCONCLUSIVE"), (1.3, "FASTER"), (0.9, "SLOWER")]
)
def test_without_the_energy_of_fp32_there_is_none_alone_and_faster_needs_more_than_the_bias(
    run, speedup, word
):
    row = capped(run, speedup).drew(1300).row()
    assert row.speedup == pytest.approx(speedup)
    assert (row.speed_verdict, row.doubts) == (word, "shared clock")


def test_precisions_as_fast_alone_tie_whichever_is_faster_in_turns(run):
    run.together({"amp-fp16": [1.5, 1.51, 1.52], "amp-bf16": [1.4, 1.41, 1.42]})
    run.drew(1000, "fp32").drew(1210, "amp-fp16").drew(1190)
    answer = run.answer()
    # amp-bf16 needs no loss scaling.
    assert (answer.precision, answer.ties) == ("amp-bf16", ["amp-fp16"])


def test_a_reader_is_shown_both(tmp_path):
    run = measured(tmp_path / "run", 1.3, is_capped=True)
    report([run.folder], tmp_path / "out", figures="none")
    for name in ("report.md", "report.html"):
        assert "1.300; in turns 1.500 [1.4" in (tmp_path / "out" / name).read_text()
    assert "each alone (in turns 1.500" in run.answer().evidence
