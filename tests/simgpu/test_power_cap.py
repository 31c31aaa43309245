"""A comparison on a GPU at its power cap: the flag, each precision alone, and what --quick and --sustained do."""

import pytest

from bench.report.exports import document
from bench.report.reading.load import load
from tests.conftest import TINY

CAPPED, COOL = "0.7,0.8,2.0,60", "0.7,0.4,0.8,60"
"""SIM_GOVERNOR: kernels in 16 bits draw more than the cap, or less; times so long that the host's do not count."""
SHORT = """
from bench.measure import sustained
sustained.WARM_S, sustained.RUN_S, sustained.LONGEST_S, sustained.SETTLED, sustained.WIDEST = 1.0, 1.5, 1.5, {}, 99.0
"""
"""Runs of one arm are short here, and settle or do not whatever the host does."""
WORDS = (
    "--gpus",
    0,
    "--batch-sizes",
    4,
    "--phases",
    "speed",
    "--precisions",
    "fp32,bf16",
    "--time-budget",
    "3s",
    "--target-ci",
    "90%",
)


@pytest.fixture(scope="module")
def measured(host):
    """Run a comparison under a governor; return its rows by precision, its JSON's and the report."""

    def go(governor, *words, settled=9.0):
        machine = host("A100", SIM_GOVERNOR=governor, OMP_NUM_THREADS="1")
        (machine.folder / "capped.py").write_text(TINY + SHORT.format(settled))
        done = machine.run("--suite", "capped.py", *WORDS, *words, "--out", "out")
        assert done.returncode == 0, done.stdout + done.stderr
        folder = machine.folder / "reports" / "out"
        rows = {row["precision"]: row for row in machine.rows("out") if row["replicate"] == "0"}
        results = document.report(load([machine.folder / "out"]))["results"]
        (result,) = (row for row in results if row["precision"] == "bf16")
        return rows["bf16"], result, "".join((folder / name).read_text() for name in ("report.md", "details.md"))

    return go


@pytest.mark.slow
@pytest.mark.needs_nvml("event_reasons")
def test_under_a_power_cap_each_precision_is_measured_alone_and_advised_by_it(measured):
    row, result, report = measured(CAPPED)
    assert row["clocks"] == "alone"
    assert int(row["shared_readings"]) >= 1
    assert result["speedup"] == pytest.approx(float(row["sustained_speedup"]))
    assert result["shared_clock_speedup"] not in (None, result["speedup"])
    assert "at a shared clock" in report
    assert "each alone at its own clock" in report


@pytest.mark.slow
def test_what_does_not_settle_has_no_figure_and_is_marked(measured):
    row, result, report = measured(CAPPED, settled=-1.0)
    assert (row["clocks"], row["sustained_speedup"]) == ("not settled", "")
    assert result["shared_clock_speedup"] is None
    assert "shared clock" in result["doubts"]
    assert "| not settled |" in report


@pytest.mark.slow
def test_quick_measures_none_alone_and_says_that_the_clock_was_shared(measured):
    row, result, _ = measured(CAPPED, "--quick")
    assert (row["clocks"], row["sustained_speedup"]) == ("shared", "")
    assert "shared clock" in result["doubts"]


@pytest.mark.slow
def test_below_the_cap_the_clock_is_each_ones_own_and_sustained_asks_all_the_same(measured):
    row, result, _ = measured(COOL)
    assert (row["clocks"], row["power_capped"]) == ("own", "no")
    assert "shared clock" not in result["doubts"]
    assert measured(COOL, "--sustained")[0]["clocks"] == "alone"
