"""The work of a run besides measuring grows in proportion to its trials: calls are counted, not time."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from bench.planning.plan import Plan
from bench.results.run_json import planned
from bench.results.store import Store
from tests.arms import arms
from tests.run.test_execute import ARMS, ScriptedLauncher, execution

CELLS = 2
HARNESS = f"{os.sep}bench{os.sep}"


def calls(function: Callable[[], object]) -> Counter[str]:
    """Return how often each function of the harness was called, or called one that is not the harness's."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType | None, event: str, _: object) -> None:
        if event == "call" and frame is not None and HARNESS not in frame.f_code.co_filename:
            frame = frame.f_back  # such as a dataclass's comparison
        if event in ("call", "c_call") and frame is not None and HARNESS in frame.f_code.co_filename:
            counted[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return counted


def steeper(counts: list[Counter[str]]) -> dict[str, list[int]]:
    """Return the functions that are called more often for each further trial, from counts of equal steps in size."""
    small, middle, large = counts
    return {
        name: [small[name], middle[name], large[name]]
        for name in large
        if large[name] - middle[name] > 1.1 * (middle[name] - small[name]) + CELLS
    }


@pytest.mark.slow
def test_running_and_resuming_call_nothing_more_often_than_in_proportion_to_the_trials(
    tmp_path, tiny_trial, cpu, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def plan(cells: int):
        memory = [replace(tiny_trial, arms=arms(name)) for name in ARMS]
        speed = [replace(tiny_trial, phase="speed", arms=arms(*ARMS), replicate=number) for number in (0, 1)]
        sizes = [replace(tiny_trial.cell, batch_size=number + 1) for number in range(cells)]
        trials = tuple(replace(trial, cell=cell) for cell in sizes for trial in (*memory, *speed))
        return Plan(trials=trials, seconds=(1.0,) * len(trials))

    def run(folder: Path, cells: int, rules: dict[str, BaseException]) -> ScriptedLauncher:
        launcher = ScriptedLauncher(rules, (1.5, 1.5))
        with Store(folder) as store:
            made = plan(cells)
            store.write_run({"planned": [planned(trial) for trial in made.trials]})
            try:
                execution(store, cpu, launcher).run(made)
            except KeyboardInterrupt:
                assert rules
        return launcher

    counted: dict[str, list[Counter[str]]] = {"half": [], "rest": [], "again": []}
    run(tmp_path / "first", 1, {})  # imports
    for cells in (CELLS, 2 * CELLS, 3 * CELLS):
        folder = tmp_path / str(cells)
        half = {f"b{cells // 2}-speed-r1": KeyboardInterrupt()}
        for part, rules in (("half", half), ("rest", {}), ("again", {})):
            counted[part].append(calls(lambda rules=rules, folder=folder, cells=cells: run(folder, cells, rules)))
    assert {part: steeper(counts) for part, counts in counted.items()} == {"half": {}, "rest": {}, "again": {}}


@pytest.mark.parametrize(("power", "found"), [(1, False), (2, True)])
def test_what_grows_with_the_square_is_found(power, found):
    assert bool(steeper([Counter(one=(step * CELLS) ** power) for step in (1, 2, 3)])) == found
