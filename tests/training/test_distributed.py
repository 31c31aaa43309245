"""Two ranks against one process with the whole batch: batch norm, evaluation, figures; placements
and refusals.
"""

import copy
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.data import WHOLE, Shard
from bench.phases.memory import MemoryPeak
from bench.planning.abilities import refusal_reason
from bench.spec.errors import UnsupportedError
from bench.spec.placement import Placement
from bench.spec.suite import Data
from bench.training import distributed
from bench.training.distributed import synchronised_norms
from bench.training.step import evaluate, training_step
from tests.conftest import call
from tests.processes import together
from tests.rows import rows
from tests.training.conftest import make, same

LATE_S = 0.2
COUNTS = (7, 3, 1)
"""Samples of the test set's batches: of the last, one of two ranks has none."""


# What the two ranks do, all of it in one pair of processes.


def run_rank(rank):
    clock = distributed.clock()
    start = clock()
    time.sleep(LATE_S if rank == 1 else 0.0)
    return {
        "took_s": (clock() - start) / 1e9,
        "gathered": distributed.gathered(rank),
        **evaluate_shard(Shard(rank=rank, ranks=2)),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return together(tmp_path_factory.mktemp("ranks"), run_rank)


def build():
    def model(_data):
        return nn.Sequential(
            nn.Linear(6, 8),
            nn.BatchNorm1d(8),
            nn.Linear(8, 3),
        )

    data = Data(input_shape=(6,), classes=3)
    return make(data=data, model=model)


def held_out(counts, shard=WHOLE):
    generator = torch.Generator().manual_seed(0)
    for count in counts:
        inputs = torch.randn(count, 6, generator=generator)
        classes = torch.randint(3, (count,), generator=generator)
        part = shard.of(0, count)
        if part.start < part.stop:
            yield inputs[part], classes[part]


def evaluate_shard(shard):
    arm = build()
    (batch,) = held_out((8,), shard)
    training_step(arm, batch)
    _, norm, _ = arm.model
    own_mean = norm.running_mean.clone()
    distributed.share_buffers(arm.model)
    result = {"own mean": own_mean, "state": arm.model.state_dict()}
    for counts in (COUNTS, (1,)):  # of a single sample one rank sees nothing at all
        result[counts] = evaluate(arm, held_out(counts, shard))
    return result


def test_ranks_agree_on_values_and_on_a_clock_that_waits_for_the_slowest(ranks):
    first, second = ranks
    assert first["gathered"] == (0, 1)
    assert second["gathered"] == (0, 1)
    assert first["took_s"] == second["took_s"] >= LATE_S


def test_batch_norms_become_torchs_synchronised_ones_with_their_weights_and_statistics():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    synchronised = synchronised_norms(copy.deepcopy(model))
    _, norm = synchronised
    assert type(norm) is nn.SyncBatchNorm
    assert same(synchronised.state_dict(), model.state_dict())


class Activated(nn.BatchNorm2d):
    """A batch norm of a user's own, which may do more than normalise."""


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Activated(3), "not a Activated"),
        (nn.LayerNorm(3), "Sequential has none"),
    ],
)
def test_a_model_whose_norms_cannot_be_synchronised_is_refused(layer, reason):
    with pytest.raises(UnsupportedError, match=reason):
        synchronised_norms(nn.Sequential(layer))


@pytest.mark.parametrize("counts", [COUNTS, (1,)])
def test_evaluated_shards_add_up_to_the_whole_test_set(ranks, counts):
    arm = build()
    first, second = ranks
    arm.model.load_state_dict(first["state"])
    loss, accuracy = evaluate(arm, held_out(counts))
    # Counts are exact.
    expected = (pytest.approx(loss, rel=1e-6), accuracy)
    assert first[counts] == expected
    assert second[counts] == expected


def test_all_ranks_evaluate_with_rank_0s_statistics(ranks):
    first, second = ranks
    assert not torch.equal(first["own mean"], second["own mean"])
    assert same(first["state"], second["state"])
    assert torch.equal(first["state"]["1.running_mean"], first["own mean"])


def test_memory_of_several_nodes_is_that_of_all_their_devices():
    first = MemoryPeak(peak_allocated_bytes=10, all_devices_bytes=17, model_bytes=3)
    second = MemoryPeak(peak_allocated_bytes=14, all_devices_bytes=8)
    together = MemoryPeak(peak_allocated_bytes=14, all_devices_bytes=25, model_bytes=3)
    assert MemoryPeak.of_all([first, second]) == together
    unknown = MemoryPeak.of_all([first, MemoryPeak()])
    assert unknown.all_devices_bytes is None


UNMEASURED = "it is not measured on devices that train together"
NOT_OFFERED = "is not offered on devices that train together"


@pytest.mark.parametrize(
    ("phase", "names", "sentence"),
    [
        ("memory", ("channels-last",), ""),
        ("numerics", (), UNMEASURED),
        ("memory", ("channels-last", "compile"), NOT_OFFERED),
        ("memory", ("checkpointing",), NOT_OFFERED),
    ],
)
def test_what_several_devices_cannot_do_is_known_before_a_process_starts(
    tiny_trial, cpu, phase, names, sentence
):
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"), techniques=names)
    reason = refusal_reason(replace(tiny_trial, phase=phase, cell=cell), cpu)
    if sentence:
        assert sentence in reason
    else:
        assert reason is None


@pytest.mark.slow
def test_both_placements_are_measured_and_the_report_has_their_scaling(tmp_path, tiny_file):
    words = (
        "--suite tiny.py --gpus cpu,cpu+cpu --precisions fp32 --quick --phases memory,speed"
        " --time-budget 0.2s --batch-sizes 4 --out run"
    )
    measured = call(*words.split(), cwd=tmp_path)
    assert measured.returncode in (0, 1), measured.stderr
    run = tmp_path / "run"
    alone, both = rows(run, "speed.csv")
    # Of all parts of a batch, which is as large.
    for column in ("compute_dtypes", "flops_per_step"):
        assert alone[column] != ""
        assert both[column] == alone[column]
    *_, memory = rows(run, "memory.csv")
    assert memory["placement"] == "cpu+cpu"
    assert memory["all_devices_bytes"] != ""
    page = tmp_path / "reports" / "run" / "report.html"
    assert "<caption>Scaling" in page.read_text()
