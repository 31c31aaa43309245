"""Figures of phases follow from the blocks and epochs of the run, in runs that the harness measured."""

from pathlib import Path

import pytest

from tests.consistency import assert_consistent

COMMITTED = sorted(path.parent for path in (Path(__file__).parents[2] / "results").glob("*/run.json"))


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_figures_of_committed_runs_follow_from_their_blocks_and_epochs(folder: Path) -> None:
    assert assert_consistent(folder)
