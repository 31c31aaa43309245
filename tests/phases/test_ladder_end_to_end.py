"""A ladder on the command line whose rungs do not fit together: memory, each apart, the table and the page."""

import csv

import pytest

from tests.conftest import call

GREEDY = """
    def model(data):
        from torch import nn

        built.append(data)
        if len(built) > 2:  # what measuring the memory of one rung builds
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
"""


@pytest.mark.slow
def test_rungs_that_do_not_fit_together_are_measured_apart_and_one_that_is_refused_is_left_out(tmp_path, tiny_file):
    text = tiny_file.read_text().replace("optim.SGD", "optim.RMSprop")  # which has no fused kernel
    text = text.replace("    def model(data):\n        from torch import nn\n", GREEDY, 1)
    tiny_file.write_text(text.replace("def suite", "built = []\n\n\ndef suite", 1))
    words = ("--suite", "tiny.py", "--gpus", "cpu", "--ladder", "--precisions", "fp32", "--batch-sizes", "4")
    more = ("--techniques", "fused-optimizer,grad-accumulation=2", "--time-budget", "0.1", "--out", "run")
    done = call(*words, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the rungs do not fit together; each is measured on its own, unpaired" in done.stdout
    assert "Ladder of tiny on " in done.stdout
    with (tmp_path / "run" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    refused = [row["precision"] for row in rows if "RMSprop lacks" in row["detail"]]
    assert refused == ["fp32+set-to-none+prefetcher+fused-optimizer"]
    apart = [row for row in rows if row["phase"] == "ladder" and row["paired"] == "no"]
    rungs = ["fp32", "fp32+set-to-none", "fp32+set-to-none+prefetcher"]
    rungs.append("fp32+set-to-none+prefetcher+grad-accumulation=2")
    assert [(row["precision"], row["rung"]) for row in apart] == [(name, str(at)) for at, name in enumerate(rungs)] * 3
    page = (tmp_path / "reports" / "run" / "report.md").read_text()
    top = next(line for line in page.splitlines() if line.startswith("| + grad-accumulation=2 |")).split(" | ")
    assert top[1] == "+ prefetcher"
    assert top[4].endswith("]")
    assert top[6] == "3 processes apart"
    assert "planned trials are missing" not in page
