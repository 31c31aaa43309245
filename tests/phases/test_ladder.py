"""An ablation's arms on the CPU: speed and memory of each step, on batches that come from host
memory.
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from bench.phases.ladder.plan import build_ablation
from bench.planning import suite_registry
from bench.results.records import Block, TrialResult
from bench.results.store import arm_name
from bench.spec.precisions import parse_precision
from bench.training.pipeline import from_host
from bench.training.step import build_arm
from tests.arms import arm
from tests.conftest import call
from tests.phases.conftest import of_kind, run_phase
from tests.report.builders import text_of
from tests.rows import trial_rows

STEPS = tuple(step.name for step in build_ablation("amp-fp16", "cpu")[0])
TOP = STEPS[-1]


def test_every_step_is_timed_and_its_blocks_are_sent(tiny_trial, cpu):
    sent = run_phase(tiny_trial, cpu, "speed", *STEPS, ablation=True)
    results = of_kind(TrialResult, sent)
    assert tuple(result.arm for result in results) == STEPS
    assert {block.precision for block in of_kind(Block, sent)} == {*STEPS}
    assert [result.row.log_speedup is None for result in results] == [True, False, False, False]
    assert {result.status for result in results} <= {"ok", "unconverged"}
    assert results[0].switches.fp32_matmul == "ieee"


@pytest.mark.parametrize("phase", ["speed", "memory"])
def test_gradients_are_zeroed_only_where_set_to_none_was_not_added(tiny_trial, cpu, built, phase):
    for name, expected in (("fp32", False), ("fp32+set-to-none", True)):
        run_phase(tiny_trial, cpu, phase, name, ablation=True)
        assert {techniques.set_to_none for techniques in built} == {expected}
        built.clear()


def test_a_step_has_a_batch_ahead_where_the_prefetcher_was_added_and_closes_it(tiny_trial):
    suite, cpu = suite_registry.load(tiny_trial.cell.suite), torch.device("cpu")
    batches = [
        (torch.full((2, *suite.data.input_shape), float(number)), torch.zeros(2))
        for number in range(3)
    ]
    for name in ("fp32", TOP):
        step = arm(name)
        techniques = replace(tiny_trial, ablation=True).techniques_of(step)
        built = build_arm(
            suite, suite.data, parse_precision("fp32"), cpu, seed=0, techniques=techniques
        )
        with ExitStack() as stack:
            fed = from_host(built, batches, stack)
            firsts = [float(next(fed)[0].flatten()[0]) for _ in range(4)]
        assert firsts == [0.0, 1.0, 2.0, 0.0]
        assert (next(fed, None) is None) == ("prefetcher" in name)


# From the command line.


GREEDY = """
    def model(data):
        from torch import nn

        built.append(data)
        if len(built) > 2:  # what measuring the memory of one step builds
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
"""


@pytest.mark.slow
def test_steps_that_do_not_fit_together_are_measured_apart_and_one_that_is_refused_is_left_out(
    tmp_path, tiny_file
):
    text = tiny_file.read_text().replace("optim.SGD", "optim.RMSprop")  # which has no fused kernel
    text = text.replace("    def model(data):\n        from torch import nn\n", GREEDY, 1)
    tiny_file.write_text(text.replace("def suite", "built = []\n\n\ndef suite", 1))
    words = "--suite tiny.py --gpus cpu --ladder --precisions fp32 --batch-sizes 4 --out run"
    more = "--techniques fused-optimizer,grad-accumulation=2 --time-budget 0.1"
    done = call(*f"{words} {more}".split(), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the steps do not fit together; each is measured on its own, unpaired" in done.stdout
    assert "Ladder of tiny on " in done.stdout
    results = trial_rows(tmp_path / "run")
    refused = [arm_name(row) for row in results if "RMSprop lacks" in row["detail"]]
    assert refused == ["fp32+set-to-none+prefetcher+fused-optimizer"]
    apart = [row for row in results if row["phase"] == "speed" and row["paired"] == "no"]
    steps = ["fp32", "fp32+set-to-none", "fp32+set-to-none+prefetcher"]
    steps.append("fp32+set-to-none+prefetcher+grad-accumulation=2")
    assert [arm_name(row) for row in apart] == steps * 3
    page = text_of(tmp_path / "reports" / "run" / "report.html")
    top = next(
        line for line in page.splitlines() if line.startswith("| + grad-accumulation=2 |")
    ).split(" | ")
    assert top[1] == "+ prefetcher"
    assert top[3].endswith("]")
    # Fewer where other programs disturbed some.
    assert top[5] in (
        "2 processes apart",
        "3 processes apart",
    )
    assert "is unfinished" not in page
