"""A captured step trains as a plain one does."""

from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch

from bench.spec.errors import UnsupportedError
from bench.spec.techniques import Techniques
from bench.training.step import leave_gradients, training_step
from bench.training.techniques import WARM_UP, GraphedStep
from tests import fake_graph
from tests.training.conftest import batches, make, state, train

(BATCH,) = batches(1)


def graphed(arm):
    return replace(arm, graph=GraphedStep(partial(leave_gradients, arm), fake_graph.CUDA))


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "fp16-master"])
@pytest.mark.parametrize(
    "techniques", [Techniques(), Techniques(set_to_none=False), Techniques(grad_accumulation=2)]
)
def test_a_captured_step_learns_what_a_plain_one_learns(monkeypatch, precision, techniques):
    fake_graph.install(monkeypatch)
    plain = make(precision, techniques)
    captured = graphed(make(precision, techniques))
    data = batches(WARM_UP + 4)
    losses = [training_step(captured, batch) for batch in data]
    # Compared after the last step: no loss was overwritten by a later one.
    assert losses == train(plain, data)
    capture = captured.graph.graph
    assert capture.graph.replays > 0
    assert torch.equal(state(plain), state(captured))
    assert plain.taken.count == captured.taken.count


@pytest.fixture
def streams(monkeypatch):
    return fake_graph.install(monkeypatch)


@pytest.fixture
def warm(streams):
    """An arm whose next step is captured."""
    arm = graphed(make())
    train(arm, batches(WARM_UP))
    return arm


def test_warming_up_is_on_a_side_stream_on_which_is_captured_whatever_other_threads_ask_of_cuda(
    streams, warm
):
    current, side = streams
    assert current.waited[-1] is side
    assert side.waited[-1] is current
    training_step(warm, BATCH)
    captured = warm.graph.graph.graph
    assert captured.errors_of == "thread_local"
    assert captured.captured_on is side


def read_value(_model, inputs):
    print(float(inputs[0].sum()))


def test_a_step_that_asks_for_a_value_cannot_be_captured(streams, warm):
    warm.model.register_forward_pre_hook(read_value)
    with pytest.raises(UnsupportedError, match="cannot be captured: operation not permitted"):
        training_step(warm, BATCH)
    assert torch.cuda.current_stream() is streams[0]


def test_a_capture_that_memory_ends_is_out_of_memory_and_not_unsupported(warm):
    error = RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling")
    fail = mock.Mock(side_effect=error)
    warm.model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError) as raised:
        training_step(warm, BATCH)
    assert raised.value is error  # no UnsupportedError, which the row would then say


def test_a_batch_of_another_shape_is_refused_and_not_trained_wrongly(warm):
    training_step(warm, BATCH)
    inputs, targets = BATCH
    with pytest.raises(UnsupportedError, match="a graph of batches"):
        training_step(warm, (inputs[:4], targets[:4]))
