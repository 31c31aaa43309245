"""A step's operators alone: which they are, on which operands, and that they run on operands of their kind."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import nn

from bench.devices.backend import Backend
from bench.measure import alone
from bench.measure.alone import Call, Operand, calls_of, largest, times

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def few_copies():
    """Make no more copies of operands than a small cache would hold."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Backend, "cold_bytes", 2**12)
        yield


@pytest.fixture(scope="module")
def calls():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
            self.out = nn.Linear(6, 5)

        def forward(self, images):
            return self.out(self.norm(self.conv(images)).relu().mean(dim=(2, 3)))

    model = Block()

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(torch.ones(3, 4, 8, 8))
        outputs.float().sum().backward()

    return calls_of(step)


def find(calls, name):
    return [call for call in calls if call.name == name]


def test_calls_are_below_autocast_with_module_flops_and_types(calls):
    (forward,) = find(calls, "convolution")
    assert (forward.module, forward.dtype, forward.count) == ("conv", torch.bfloat16, 1)
    assert [operand.shape for operand in forward.operands] == [(3, 4, 8, 8), (6, 4, 3, 3), (6,)]
    assert forward.flops == 2 * 3 * 6 * 6 * 6 * 4 * 3 * 3
    (backward,) = find(calls, "convolution_backward")
    assert backward.module == "conv"
    casts = [call for call in calls if call.work == "casts and layout"]
    assert casts
    assert not find(calls, "view")
    assert not find(calls, "t")


def test_every_call_runs_alone_in_either_type(calls):
    for call in calls:
        assert None not in times([call, call.in_type(torch.bfloat16)], CPU, 0.0), call.title


def test_a_call_in_another_type_keeps_what_is_no_number(calls):
    (backward,) = find(calls, "convolution_backward")
    wide = torch.float32
    plain = backward.in_type(wide)
    assert plain == backward  # only fp32 is cast
    (norm,) = find(calls, "native_batch_norm")
    assert {operand.dtype for operand in norm.operands} == {torch.bfloat16, wide}
    assert {operand.dtype for operand in norm.in_type(torch.float16).operands} == {torch.bfloat16, torch.float16}


def test_operands_span_the_memory_that_their_strides_need():
    operand = Operand(shape=(3, 4), stride=(1, 5), dtype=torch.float32)
    tensor = operand.make(CPU, torch.Generator())
    assert (tuple(tensor.shape), tensor.stride(), operand.elements) == ((3, 4), (1, 5), 18)
    assert Operand(shape=(0, 4), stride=(4, 1), dtype=torch.float32).elements == 0
    assert torch.equal(operand.copy(tensor), tensor)
    assert operand.copy(tensor).stride() == tensor.stride()
    assert operand.copy(tensor).data_ptr() != tensor.data_ptr()
    expanded = Operand(shape=(3, 4), stride=(0, 1), dtype=torch.float32)
    assert expanded.make(CPU, torch.Generator()).stride() == (0, 1)
    assert not Operand(shape=(2,), stride=(1,), dtype=torch.int64).make(CPU, torch.Generator()).any()


def test_indices_are_drawn_from_those_that_the_step_had():
    table, rows = torch.zeros(1000, 4), torch.arange(0, 500, 5)
    calls = alone.calls_of(lambda: (torch.nn.functional.embedding(rows, table), table[rows % 7]))
    (embedding,) = find(calls, "embedding")
    (indices,) = [operand for operand in embedding.operands if not operand.dtype.is_floating_point]
    tensor = indices.make(CPU, torch.Generator().manual_seed(0))
    assert indices.largest == 495
    assert 0 <= tensor.min() < tensor.max() <= 495
    assert all(alone.times([call], CPU, 0.0) != [None] for call in calls)


EFFICIENT, FLASH = "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"


@pytest.fixture
def attention():
    """A stand-in for CUDA's backward of attention with dropout, by its schema; like there, its seed is the CPU's."""
    schema = str(getattr(torch.ops.aten, f"{EFFICIENT}_backward").default._schema).removeprefix("aten::")
    library = torch.library.Library("made_up", "FRAGMENT")
    library.define(schema)

    def backward(*arguments, **_options):
        _gradient, query, key, value, _bias, _output, logsumexp, seed, *_ = arguments
        if (seed.device, logsumexp.device) != (CPU, query.device):
            raise RuntimeError("a host address was read that is a device's")
        return tuple(map(torch.empty_like, (query, key, value, query)))

    library.impl(f"{EFFICIENT}_backward", backward, "CompositeExplicitAutograd")
    yield getattr(torch.ops.made_up, f"{EFFICIENT}_backward").default
    library._destroy()


def test_operands_lie_where_the_step_had_them(attention):
    """The device is ``meta``, which stands in for a GPU."""
    wide, rows = torch.empty(2, 4, 16, 8, device="meta"), torch.empty(2, 4, 16, device="meta")
    seed = torch.tensor(7)
    arguments = (*[wide] * 4, None, wide, rows, seed, seed, 0.1, [True, True, True, False])
    (call,) = calls_of(lambda: attention(*arguments))
    made, keywords = call.with_each(lambda operand: operand.make(wide.device, None))
    assert [tensor.device.type for tensor in made if isinstance(tensor, torch.Tensor)] == ["meta"] * 6 + ["cpu"] * 2
    attention(*made, **keywords)


def test_a_sparse_operand_is_described_and_its_call_does_not_run_alone(capsys):
    gradient = torch.eye(3).to_sparse()
    (call,) = [call for call in calls_of(lambda: gradient @ torch.ones(3, 2)) if "mm" in call.name]
    assert times([call], CPU, 0.0) == [None]
    assert "sparse_coo" in capsys.readouterr().out


def test_attention_in_a_narrower_type_is_timed_by_the_kernel_that_a_step_in_it_has():
    def call(kernel, shape, dtype):
        heads = [Operand(shape=shape, stride=(512, 128, 8, 1), dtype=dtype)] * 3
        return Call(
            function=getattr(torch.ops.aten, kernel).default,
            arguments=(*heads, None, True),
            keywords={},
            work="other products",
            module="",
        )

    shape, half = (2, 4, 16, 8), torch.bfloat16
    wide, own = call(EFFICIENT, shape, torch.float32), call(FLASH, shape, half)
    others = [call(FLASH, (1, 4, 16, 8), half), call(f"{FLASH}_backward", shape, half), own]
    assert wide.counterpart(others, half) is own
    assert wide.counterpart(others[:2], half) == wide.in_type(half)
    assert wide.counterpart([call(FLASH, shape, torch.float32), wide], torch.float32) == wide


def test_padding_rounds_odd_sizes_up_and_keeps_the_order_of_the_strides():
    (call,) = calls_of(lambda: torch.mm(torch.ones(4095, 130), torch.ones(7, 130).t()))
    first, second = call.padded(64).operands
    assert (first.shape, first.stride) == ((4096, 192), (192, 1))
    assert (second.shape, second.stride) == ((192, 7), (1, 192))
    (even,) = calls_of(lambda: torch.mm(torch.ones(128, 64), torch.ones(64, 64)))
    assert even.padded(64) == even


def test_padding_a_convolution_adds_channels_and_no_pixels():
    (call,) = calls_of(lambda: torch.conv2d(torch.ones(4, 65, 100, 100), torch.ones(130, 65, 3, 3)))
    images, weights = call.padded(64).operands
    assert images.shape == (4, 128, 100, 100)
    assert weights.shape == (192, 128, 3, 3)


def test_channels_last_turns_images_and_nothing_else(calls):
    (forward,) = find(calls, "convolution")
    images, weights, bias = forward.channels_last().operands
    assert images.stride == torch.empty(3, 4, 8, 8).to(memory_format=torch.channels_last).stride()
    assert weights.stride == torch.empty(6, 4, 3, 3).to(memory_format=torch.channels_last).stride()
    assert bias.stride == (1,)


def test_the_largest_calls_cover_the_share_that_is_asked(calls):
    products = largest(calls, by=lambda call: call.flops, share=0.9)
    assert sorted(call.name for call in products) == ["convolution", "convolution_backward"]
    assert len(largest(calls, by=lambda call: call.flops, share=0.4)) == 1
    assert largest(calls, by=lambda _call: 0.0) == []


def test_a_call_that_does_not_run_alone_is_unknown(capsys):
    (call,) = calls_of(lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5)))
    odd = Operand(shape=(2, 2), stride=(2, 1), dtype=torch.float32)
    uneven = call.with_operands(lambda leaf: odd if leaf.shape == (3, 4) else leaf)
    fine, missing = times([call, uneven], CPU, 0.0)
    assert fine is not None
    assert missing is None
    assert "does not run alone" in capsys.readouterr().out


def test_calls_that_differ_in_strides_alone_have_titles_of_their_own():
    def step():
        torch.mm(torch.ones(4, 4), torch.ones(4, 4))
        torch.mm(torch.ones(4, 4), torch.ones(4, 4).t())

    first, second = calls_of(step)
    assert second.title == f"{first.title} #2"


def test_each_variant_is_timed_under_its_own_settings():
    (call,) = calls_of(lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5)))
    order = []
    times([call, call], CPU, 0.0, [lambda: order.append("a"), lambda: order.append("b")])
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_gpus_time_is_between_events_of_work_that_is_queued_while_it_waits():
    gpu = Mock()
    gpu.record_event.return_value.elapsed_time.return_value = 3.0  # milliseconds
    assert alone._gpu_s(gpu.work, gpu) == 3e-3
    timed = ["record_event", "work", "record_event", "synchronize"]
    assert [call[0] for call in gpu.method_calls] == ["synchronize", "work", "synchronize", "spin", *timed]


@pytest.mark.parametrize("cached", [False, True])
def test_a_gpus_caches_are_evicted_outside_the_time_of_each_cold_call(monkeypatch, cached):
    gpu = Mock(is_gpu=True)
    gpu.record_event.return_value.elapsed_time.return_value = 3.0
    monkeypatch.setattr(alone, "backend_of", lambda _device: gpu)
    (call,) = calls_of(lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5)))
    times([call], CPU, 0.0, cached=cached)
    order = [name for name in (called[0] for called in gpu.method_calls) if name in ("evict", "record_event")]
    cold = ["evict"] + ["evict", "record_event", "record_event"] * alone.FEWEST_CALLS
    assert order == (["record_event"] * 2 * alone.FEWEST_CALLS if cached else cold)


def test_a_gpus_rate_of_copies_is_timed_by_events(monkeypatch):
    gpu = Mock(is_gpu=True, cold_bytes=2**20)
    gpu.record_event.return_value.elapsed_time.return_value = 1.0  # milliseconds
    monkeypatch.setattr(alone, "backend_of", lambda _device: gpu)
    assert alone.copy_gb_per_s(CPU, torch.float32) == pytest.approx(2 * 2**20 / 1e6)
    assert alone.copy_gb_per_s(CPU, torch.float32, to=torch.bfloat16) == pytest.approx(1.5 * 2**20 / 1e6)
