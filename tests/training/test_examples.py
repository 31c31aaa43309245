"""The examples of trainings of one's own: each runs, and its losses in fp32 are those of a plain
loop.
"""

from itertools import product
from pathlib import Path

import pytest

from tests.conftest import call
from tests.rows import trial_rows

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(ROOT.glob("docs/examples/*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_measured_and_trained_in_two_precisions(file, tmp_path):
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # one of them trains on it
    words = (
        "--precisions fp32,amp-bf16 --quick --epochs 1 --gpus cpu --time-budget 0.5"
        " --batch-sizes 4 --out run"
    )
    done = call("--suite", file, *words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = set()
    for row in trial_rows(tmp_path / "run"):
        assert row["status"] in ("ok", "unconverged")
        measured.add((row["phase"], row["precision"]))
    phases = ("memory", "speed", "train")
    assert measured == set(product(phases, ("fp32", "amp-bf16")))
