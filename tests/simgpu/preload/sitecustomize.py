"""Replaces torch's operators in every Python process on simulated GPUs.

Python imports this module by itself when its folder is on PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import os
import sys
from contextlib import contextmanager
from pathlib import Path

BUILT = Path(__file__).resolve().parents[1]


@contextmanager
def without_stderr():
    """Keep quiet what torch prints from C++ for every kernel that is replaced."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def install(torch):
    """Replace torch's CUDA operators, and let graphs record and replay them."""
    if torch.version.cuda is None:
        return
    operators = ctypes.CDLL(str(BUILT / "operators.so"))
    with without_stderr():
        operators.simgpu_install()
    torch._simgpu = operators
    record_graphs(torch, operators)
    built_for = torch._C._cuda_getArchFlags

    def architectures():
        made_up = os.environ.get("SIM_ARCH_LIST")
        return made_up.replace(",", " ") if made_up else built_for()

    torch._C._cuda_getArchFlags = architectures
    # These have kernels of GPUs alone; the operators of the backend math are replaced.
    for kind in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    if os.environ.get("SIM_NO_CUDNN"):
        torch.backends.cudnn.enabled = False


def record_graphs(torch, operators):
    """Record what runs while a graph is captured, and run it again with each replay."""
    graph = torch.cuda.CUDAGraph
    capture_begin, capture_end, replay = graph.capture_begin, graph.capture_end, graph.replay

    def begin(self, *arguments, **options):
        capture_begin(self, *arguments, **options)
        operators.simgpu_record_begin(ctypes.c_int64(id(self)))

    def end(self):
        operators.simgpu_record_end()
        capture_end(self)

    def replay_recorded(self):
        replay(self)
        operators.simgpu_replay(ctypes.c_int64(id(self)), torch.cuda.current_device())

    graph.capture_begin, graph.capture_end, graph.replay = begin, end, replay_recorded


class AfterTorch(importlib.abc.MetaPathFinder):
    """Calls ``install`` at the end of ``import torch``."""

    def find_spec(self, name, path, target=None):
        """Return torch's spec, with a loader that installs the operators; else None."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                install(module)

            spec.loader.exec_module = exec_module
        return spec


if str(BUILT) in os.environ.get("LD_PRELOAD", ""):
    sys.meta_path.insert(0, AfterTorch())
