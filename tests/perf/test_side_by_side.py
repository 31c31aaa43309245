"""``--before CHECKOUT`` in perf/: each checkout measures with its own code, by turns, and is compared turn by turn."""

import json
import math
from pathlib import Path

import pytest

from perf import arms, half_width, overhead, report, side_by_side


def test_each_checkout_comes_first_in_every_other_round():
    sides = side_by_side.checkouts(Path("/old"))
    turns = [(number, side) for number, side, _ in side_by_side.turns(sides, 2)]
    assert turns == [(0, "before"), (0, "here"), (1, "here"), (1, "before")]
    assert dict(turn[1:] for turn in side_by_side.turns(sides, 1)) == sides
    assert list(side_by_side.checkouts(None)) == ["here"]


def test_a_checkout_is_called_with_its_own_code(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name / "bench").mkdir(parents=True)
        (tmp_path / name / "bench" / "__init__.py").write_text(f"NAME = {name!r}")
    code = "import json, sys, bench; print('a note'); print(json.dumps([bench.NAME, *json.loads(sys.argv[1])]))"
    for name in ("old", "new"):
        assert side_by_side.call(tmp_path / name, code, [1, None]) == [name, 1, None]


def test_rounds_that_scatter_alike_give_an_exact_ratio():
    before = [0.0, 1.0, 3.0]
    here, there, over = side_by_side.compared("x", [log + math.log(1.5) for log in before], before, most=1.2)
    assert over.interval.center == pytest.approx(1.5)
    assert over.interval.high == pytest.approx(over.interval.low)
    assert here.interval.high / here.interval.low == pytest.approx(there.interval.high / there.interval.low) != 1
    assert [row.missed for row in (here, there, over)] == [False, False, True]


def test_a_report_is_slower_only_where_the_whole_interval_is():
    times = {("fleet", what): [2.0, 4.0, 3.0] for what in report.LABELS}
    slower = {key: [1.5 * seconds for seconds in rounds] for key, rounds in times.items()}
    assert not any(row.missed for row in report.against(times, times))
    missed = [row.name for row in report.against(slower, times) if row.missed]
    assert missed == [f"fleet: {report.LABELS[what]}, here ÷ before" for what in ("whole", "all", report.WITHOUT)]


def test_a_half_width_is_that_of_the_interval_that_the_checkout_reports(tmp_path):
    figures = {"speedup": 2.0, "speedup_low": 1.6, "speedup_high": 2.5, "process_speedups": [1.9, 2.0, 2.1]}
    rows = [dict.fromkeys(figures), figures]
    program = f"import sys\nif sys.argv[1] == 'report':\n    print({json.dumps({'results': rows})!r})\n"
    (tmp_path / "run_bench.py").write_text(program)
    measured = half_width.measure(tmp_path, ["--suite", "mlp"])
    assert measured.log.n == 3
    assert measured.half == pytest.approx(math.log(2.5 / 1.6) / 2)


def test_processes_of_both_checkouts_build_the_same_arm_first(monkeypatch):
    calls = []

    def call(checkout, _code, argument):
        calls.append((checkout.name, argument["own_first"]))
        return {arms.HARNESS: 0.01 * len(calls)}

    monkeypatch.setattr(side_by_side, "call", call)
    comparison = arms.Comparison(suite="mlp", parameters={}, precision="fp32", device="cpu", batch_size=4, budget_s=1.0)
    here, before = overhead.log_ratios(None, comparison, 2, Path("/old"))
    folder = side_by_side.HERE.name
    assert calls == [("old", True), (folder, True), (folder, False), ("old", False)]
    assert [[log[arms.HARNESS] for log in side] for side in (here, before)] == [[0.02, 0.03], [0.01, 0.04]]
