"""CUDA graphs on a CPU: operations are recorded while they run, and a replay does them again.

It works in the same memory. As on a GPU, a replay reads and writes the tensors of the capture,
whatever Python has done with their names since.
"""

import contextlib
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.devices.backend import backend_of


class FakeGraph:
    def __init__(self):
        self.operations = []
        self.replays = 0

    @torch.no_grad()
    def replay(self):
        self.replays += 1
        for operation, args, kwargs, outputs in self.operations:
            inputs = set()
            for tensor in tensors(args, kwargs):
                inputs.add(tensor.untyped_storage().data_ptr())
            again = operation(*args, **kwargs)
            for held, fresh in zip(tensors(outputs), tensors(again), strict=True):
                if held.untyped_storage().data_ptr() not in inputs:
                    held.copy_(fresh)


def tensors(*values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Recorder(TorchDispatchMode):
    def __init__(self, graph, pool=None, stream=None, capture_error_mode="global"):
        super().__init__()
        self.graph, self.stream = graph, stream
        graph.errors_of, graph.captured_on = capture_error_mode, stream

    def __enter__(self):
        self.before = torch.cuda.current_stream()
        torch.cuda.set_stream(self.stream)
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if error is not None:  # as torch does, whose exit ends the capture and finds it broken
            raise RuntimeError("operation failed due to a previous error during capture\nand so on")
        torch.cuda.set_stream(self.before)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing\nand so on")
        outputs = operation(*args, **(kwargs or {}))
        self.graph.operations.append((operation, args, kwargs or {}, outputs))
        return outputs


class FakeStream:
    """A stream of a device that does everything at once."""

    device_index = 0

    def __init__(self, device=None):
        self.waited = []

    def wait_stream(self, other):
        self.waited.append(other)


def install(monkeypatch):
    """Let torch.cuda capture on the CPU; return the streams that were made, the current first."""
    backend_of.cache_clear()
    streams = [FakeStream()]
    current = streams[:]

    def stream(device=None):
        streams.append(FakeStream())
        return streams[-1]

    fakes = {
        "CUDAGraph": FakeGraph,
        "graph": Recorder,
        "graph_pool_handle": lambda: (0, 1),
        "Stream": stream,
        "current_stream": lambda device=None: current[-1],
        "set_stream": current.append,
        "stream": contextlib.nullcontext,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return streams


@dataclass(frozen=True)
class FakeDevice:
    type: str


CUDA = FakeDevice("cuda")
