"""Pairs of runs made from committed blocks: they are runs, and what was planted is in them."""

import numpy as np
import pytest

from bench.report import load
from perf.regressions import RUN, Source, compared, write


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["rounds", "processes"])
def test_a_pair_is_two_runs_and_new_is_slower_by_what_was_planted(tmp_path, draw):
    source = Source(RUN)
    for name, slower in (("old", 1.0), ("new", 3.0)):
        write(source, tmp_path / name, np.random.default_rng(0), draw=draw, processes=4, slower=slower)
    rows = load(tmp_path / "old", tmp_path / "new").summary.set_index(["run", "batch_size", "precision"])
    ratio = rows.loc["new", "step_ms"] / rows.loc["old", "step_ms"]  # of equal draws, for equal seeds
    assert ratio.tolist() == pytest.approx([3.0] * 6)
    assert rows.loc["new", "measured_in"].tolist()[1] == "4 processes"
    for turn in (1, 2):
        for name, slower in (("old", 1.0), ("new", 3.0)):
            folder, rng = tmp_path / f"{name}s" / f"{name}-{turn}", np.random.default_rng(turn)
            write(source, folder, rng, draw=draw, processes=4, slower=slower)
    code, verdicts = compared(tmp_path / "olds", tmp_path / "news")
    assert (code, verdicts.count("REGRESSED")) == (1, 6)
