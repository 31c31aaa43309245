"""Records the training steps of a script that knows nothing of it, inside the script's own process.

The launcher copies this file as ``sitecustomize.py`` into a folder on PYTHONPATH, so that it
reaches every Python process that the script starts: the children of torchrun, of accelerate launch
and of ``multiprocessing``. It imports nothing of this package but the overlay and the loss scaling,
which are copied beside it. A process that trains has a record of its events; ``bench.script.steps``
makes figures of them.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import random
import sys
import threading
import time
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any

try:
    import ampmeter_overlay as overlay  # type: ignore[import-not-found]
except ModuleNotFoundError:  # not the copy in a script's process
    from bench.script import overlay

FOLDER = os.path.dirname(os.path.abspath(__file__))
# The variable with the settings, as JSON: those that ``bench.script.launcher`` writes.
VARIABLE = "AMPMETER_HOOK"
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
# Beginnings of the names of operators that are products, too.
FUSED = ("_scaled_dot_product_", "_linear_pointwise", "_convolution_pointwise", "mkldnn_rnn_layer")
# How often the number of steps is written, for the launcher.
BEAT_S = 5.0
# Exit code of a process that ended itself because it cannot be measured.
REFUSED = 3
# After so many backward passes without a step of an optimizer a process is ended: none accumulates
# as many.
MOST_PASSES = 1000


class Recorder:
    """Notes when optimizer steps end, and what else happened since the one before."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.warmup: int = settings["warmup"]
        # One more, because a step is timed from the end of the one before.
        self.total: int = settings["warmup"] + settings["steps"] + 1
        self.torch: Any = None
        self.scaling: Any = None
        """The loss scaling that is entered from outside, if any is."""
        self.warnings: set[str] = set()
        """What to say of the script in the row of its arm."""
        self.overlay: Any = None
        self.observer: Any = None
        """What observes steps where they are to be explained."""
        self.resident_bytes = 0
        """Of the process before it trains, which its peak is measured from."""
        self.steps: list[dict[str, Any]] = []
        self.optimizers: dict[int, str] = {}
        """Names of optimizers, by the first parameter of each: a new one may go on with it."""
        self.products: Any = None
        """The mode that counts products, while it does."""
        self.computed: dict[str, int] = {}
        self.is_updating = False
        """Whether an optimizer steps, and no forward pass has begun in it."""
        self.scaled = (None, None)
        """The loss that a GradScaler scaled last, and what it was before."""
        self.is_scaled = False
        """Whether a GradScaler has scaled a loss."""
        self.calls = 0
        """Of optimizers' steps."""
        self.beat_s = 0.0
        self._begin_step()

    def _begin_step(self) -> None:
        self.backwards = 0
        """Backward passes, and gradients by ``torch.autograd.grad``."""
        self.losses: list[Any] = []
        """Numbers, or tensors of one on a GPU."""
        self.data_s: float | None = None
        self.marks: set[str] = set()

    def stepped(self, optimizer: Any, skipped: bool = False) -> None:
        """Note the end of an optimizer's step, or that a GradScaler skipped it."""
        event = None
        if self.torch.cuda.is_initialized():
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
        now = time.perf_counter()
        self.calls += 1
        # A part of the step before: SAM, Muon beside Adam, or a script's bug.
        if not self.backwards and self.steps:
            self.steps[-1].update(s=now, event=event)
            return
        first = next(parameter for group in optimizer.param_groups for parameter in group["params"])
        self.optimizers.setdefault(id(first), type(optimizer).__name__)
        # Fused optimizers skip inside their step; the GradScaler reuses the tensor.
        infinite = getattr(optimizer, "found_inf", None)
        step = {
            "s": now,
            "event": event,
            "optimizer": id(first),
            "backwards": self.backwards,
            "losses": self.losses,
            "data_s": self.data_s,
            "marks": self.marks,
            "skipped": skipped if infinite is None else infinite.clone(),
        }
        self.steps.append(step)
        self._begin_step()
        count = len(self.steps)
        if "census" in self.settings and count == self.warmup // 2:
            self.products = products_mode(self)
            self.products.__enter__()
        if count == self.warmup:
            if self.products is not None:
                self.products.__exit__(None, None, None)
            reset_peak()
        if self.observer is not None and count >= self.warmup:
            self.observer.ended(optimizer)
        if now - self.beat_s > BEAT_S:
            self.beat_s = now
            with suppress(OSError), open(f"{self.settings['home']}/beat", "w") as file:
                file.write(str(count))

    def begins(self) -> None:
        """Note that a backward pass begins.

        The process ends if all steps were measured: the last one is whole. It also ends if no step
        was seen in many passes, for the script may go on for ever.
        """
        if len(self.steps) >= self.total:
            self.finish()
            leave(0)
        self.backwards += 1
        if not self.steps and self.backwards == MOST_PASSES:
            self.refuse(
                f"no optimizer of torch took a step in {MOST_PASSES} backward passes: has it its "
                "own update rule?"
            )

    def note_loss(self, tensors: Any) -> None:
        """Keep the loss of a backward pass; a device's is read at the end, without waiting here."""
        loss = tensors if isinstance(tensors, self.torch.Tensor) else next(iter(tensors), None)
        scaled, unscaled = self.scaled
        if loss is scaled:
            loss = unscaled
        if isinstance(loss, self.torch.Tensor) and loss.numel() == 1:
            self.losses.append(loss.item() if loss.is_cpu else loss.detach().clone())

    def finish(self) -> None:
        """Write what was recorded, if this process took steps."""
        if not self.steps:
            return
        if self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()
        optimizers = list(self.optimizers)
        origin = self.steps[0]["event"]
        for step in self.steps:
            event = step.pop("event")
            losses = step.pop("losses")
            step["loss"] = sum(map(float, losses)) if losses else None
            step["gpu_s"] = origin.elapsed_time(event) / 1e3 if origin and event else None
            step["optimizer"] = optimizers.index(step["optimizer"])
            step["marks"] = sorted(step["marks"])
            step["skipped"] = bool(step["skipped"])
        distributed = self.torch.distributed
        self.write(
            {
                "world": distributed.get_world_size() if distributed.is_initialized() else 1,
                "whole": len(self.steps) >= self.total,
                "start_s": time.time() - time.perf_counter(),
                "steps": self.steps,
                "optimizers": list(self.optimizers.values()),
                "computed": self.computed,
                "is_scaled": self.is_scaled,
                "warnings": sorted(self.warnings),
                "observed": getattr(self.observer, "rows", []),
                "trace": self.trace,
                "memory": self._peak(),
            }
        )

    def _peak(self) -> dict[str, int]:
        """Return the peak of memory, by its columns of memory.csv."""
        cuda = self.torch.cuda
        if cuda.is_initialized():
            return {
                "peak_allocated_bytes": cuda.max_memory_allocated(),
                "peak_reserved_bytes": cuda.max_memory_reserved(),
            }
        return {"peak_resident_bytes": status_bytes("VmHWM") - self.resident_bytes}

    @property
    def trace(self) -> str:
        """Where the profiler's trace is written."""
        return f"{self.settings['home']}/trace.{os.getpid()}.json"

    def write(self, record: dict[str, Any]) -> None:
        """Write a record of this process for the launcher, whole or not at all."""
        path = f"{self.settings['home']}/out.{os.getpid()}"
        with open(f"{path}.part", "w") as file:
            json.dump(record, file)
        os.replace(f"{path}.part", f"{path}.json")

    def refuse(self, why: str) -> None:
        """End the process because the script cannot be measured."""
        self.write({"refused": why})
        leave(REFUSED)


def leave(code: int) -> None:
    """End the process at once: no except, finally or atexit of the script's runs."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def install(recorder: Recorder) -> None:
    """Hook into torch, which has just been imported."""
    import torch

    recorder.torch = torch
    if recorder.scaling is not None:
        recorder.scaling.install()
    if "explain" in recorder.settings:
        observe: Any = load("ampmeter_observe", [FOLDER])
        recorder.observer = observe.LoopObserver(
            recorder.trace, recorder.steps, **recorder.settings["explain"]
        )
    watch_steps(recorder)
    watch_backward(recorder)
    watch_forward(recorder)
    watch_marks(recorder)
    recorder.resident_bytes = status_bytes("VmRSS")
    torch.manual_seed(recorder.settings["seed"])
    atexit.register(recorder.finish)


def watch_steps(recorder: Recorder) -> None:
    """Note the ends of optimizer steps, and those that a GradScaler skips."""
    import torch
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    @torch.compiler.disable  # else compiled optimizers trace it
    def before_step(_optimizer, _args, _kwargs):
        recorder.is_updating = True

    @torch.compiler.disable
    def after_step(optimizer, _args, _kwargs):
        recorder.is_updating = False
        recorder.stepped(optimizer)

    if "census" in recorder.settings:
        register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)

    @overlay.wrap(torch.amp.GradScaler, "_maybe_opt_step")
    def _(old, self, optimizer, *args, **kwargs):
        before = recorder.calls
        result = old(self, optimizer, *args, **kwargs)
        if recorder.calls == before:
            recorder.stepped(optimizer, skipped=True)
        return result


def watch_backward(recorder: Recorder) -> None:
    """Note backward passes and their losses, which are scaled where that is asked for."""
    import torch

    scaling = recorder.scaling

    @overlay.wrap(torch.amp.GradScaler, "scale")
    def _(old, self, outputs):
        if scaling is not None and self is not scaling.scaler and self.is_enabled():
            recorder.refuse(
                "it scales its loss itself: give the option that turns that on in --arm, not "
                "--inject"
            )
        result = old(self, outputs)
        recorder.scaled = (result, outputs)
        recorder.is_scaled |= self.is_enabled()
        return result

    @overlay.wrap(torch.autograd, "backward")  # Tensor.backward calls it
    def _(old, tensors, *args, **kwargs):
        recorder.begins()
        recorder.note_loss(tensors)
        if scaling is None:
            old(tensors, *args, **kwargs)
        else:
            scaling.backward(old, tensors, *args, **kwargs)
        recorder.scaled = (None, None)

    @overlay.wrap(torch.autograd, "grad")
    def _(old, *args, **kwargs):
        if not torch.compiler.is_compiling():
            recorder.begins()
            if scaling is not None:
                recorder.warnings.add(
                    "torch.autograd.grad runs without the loss scale: small gradients may become "
                    "zero there"
                )
        return old(*args, **kwargs)


def watch_forward(recorder: Recorder) -> None:
    """Enter the injected precision at the outermost forward of a module; note evaluation there."""
    import torch

    inject = recorder.settings["inject"]
    if inject in ("fp32", "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = inject == "tf32"
    dtype = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(inject)
    inside = Inside()

    def enter(forward: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the outermost forward under the injected autocast."""
        if not torch.is_grad_enabled():
            # By name: a teacher's pass in each step is no evaluation of the model.
            recorder.marks.add(f"evaluation of {name}")
        recorder.is_updating = False
        inside.forward = True
        try:
            if dtype is None:
                return forward(*args, **kwargs)
            with torch.autocast("cuda" if torch.cuda.is_initialized() else "cpu", dtype=dtype):
                out = forward(*args, **kwargs)
            if isinstance(out, torch.Tensor):
                return to_fp32(out)
            return torch.utils._pytree.tree_map_only(torch.Tensor, to_fp32, out)
        finally:
            inside.forward = False

    watch_calls(inside, enter)
    if dtype is not None:
        watch_compiled(inside, enter)


def watch_calls(inside: Inside, enter: Any) -> None:
    """Enter the injected autocast where a module is called.

    Hooks would not do: dynamo inlines them, and skips them where it compiles.
    """
    import torch

    is_compiling = torch.compiler.is_dynamo_compiling
    call: Any = torch.nn.Module.__call__

    def outermost(self, *args, **kwargs):
        # First, because dynamo drops what follows where it compiles this function.
        if is_compiling():
            return call(self, *args, **kwargs)
        if inside.forward and self._compiled_call_impl is None:
            # What ``call`` does then. Each layer comes by here, and would pay for the call between.
            return self._call_impl(*args, **kwargs)
        if inside.forward or not has_parameters(self):
            return call(self, *args, **kwargs)
        return enter(call, type(self).__name__, self, *args, **kwargs)

    torch.nn.Module.__call__ = outermost  # type: ignore[method-assign]


def watch_compiled(inside: Inside, enter: Any) -> None:
    """Enter the injected autocast where compiled code is called that is no module."""
    import torch

    @overlay.wrap(torch, "compile")
    def _(old, model=None, **kwargs):
        compiled = old(model, **kwargs)
        if model is None or isinstance(model, torch.nn.Module):
            return compiled

        # A function, or a module's forward, which is called without its module.
        @functools.wraps(compiled)
        def entered(*args, **kwargs):
            if torch.compiler.is_dynamo_compiling() or inside.forward:
                return compiled(*args, **kwargs)
            return enter(compiled, "compiled code", *args, **kwargs)

        return entered


class Inside(threading.local):
    """Whether this thread is in the forward pass of a module."""

    forward = False


def has_parameters(module: Any) -> bool:
    """Return whether a module has parameters.

    ``parameters()`` takes some ten times as long, in each step.
    """
    for parameter in module._parameters.values():
        if parameter is not None:
            return True
    return any(child is not None and has_parameters(child) for child in module._modules.values())


def to_fp32(output: Any) -> Any:
    """Return a tensor of a module's output, in fp32 if it has 16 bits, as accelerate does."""
    is_narrow = output.dtype.itemsize == 2 and output.is_floating_point()
    return output.float() if is_narrow else output


def watch_marks(recorder: Recorder) -> None:
    """Note how long the script waits for a DataLoader, and what does not belong to each step."""
    import torch
    from torch._dynamo.callback import callback_handler
    from torch.utils.data import dataloader

    callback_handler.register_start_callback(lambda _args: recorder.marks.add("compile"))

    @overlay.wrap(dataloader._BaseDataLoaderIter, "__next__")
    def _(old, self):
        started = time.perf_counter()
        try:
            return old(self)
        finally:
            recorder.data_s = (recorder.data_s or 0.0) + time.perf_counter() - started

    @overlay.wrap(dataloader.DataLoader, "__iter__")
    def _(old, self):
        recorder.marks.add("epoch")
        return old(self)

    @overlay.wrap(torch.nn.Module, "eval")
    def _(old, self):
        recorder.marks.add("evaluation")
        return old(self)

    @overlay.wrap(torch, "save")  # which opens its file in C++
    def _(old, obj, f, *args, **kwargs):
        recorder.marks.add("checkpoint")
        return old(obj, recorder.overlay.writing(f), *args, **kwargs)


def redirect_safetensors(recorder: Recorder) -> None:
    """Hook into safetensors, which has just been imported.

    Its parts for torch and others call these functions.
    """
    import safetensors

    @overlay.wrap(safetensors, "serialize_file")
    def _(old, tensor_dict, filename, *args, **kwargs):
        return old(tensor_dict, recorder.overlay.writing(filename), *args, **kwargs)

    @overlay.wrap(safetensors, "safe_open")
    def _(old, filename, *args, **kwargs):
        return old(recorder.overlay.reading(filename), *args, **kwargs)


def seed_numpy(recorder: Recorder) -> None:
    """Seed NumPy, which has just been imported."""
    import numpy as np

    np.random.seed(recorder.settings["seed"])


def products_mode(recorder: Recorder) -> Any:
    """Return a mode that counts matrix products by the type of their first tensor, TF32 apart.

    An optimizer's own products, such as Muon's in bfloat16, are not the model's and do not count.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Let dynamo compile under it, and see the operators that compiled code calls."""
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "overloadpacket", func).__name__
            if (name in PRODUCTS or name.startswith(FUSED)) and not recorder.is_updating:
                tensor = next(each for each in args if isinstance(each, torch.Tensor))
                kind = str(tensor.dtype).removeprefix("torch.")
                if kind == "float32" and tensor.is_cuda and uses_tf32(convolution="conv" in name):
                    kind = "tf32"
                recorder.computed[kind] = recorder.computed.get(kind, 0) + 1
            return func(*args, **(kwargs or {}))

    return Products()  # type: ignore[no-untyped-call]


def uses_tf32(*, convolution: bool) -> bool:
    """Return a switch of TF32.

    From torch 2.9 on, ``allow_tf32`` raises where a script has set ``fp32_precision``.
    """
    import torch

    backend: Any = torch.backends.cudnn if convolution else torch.backends.cuda.matmul
    if not hasattr(backend, "fp32_precision"):
        return bool(backend.allow_tf32)
    switch = backend.conv if convolution else backend
    return bool(switch.fp32_precision == "tf32")


def reset_peak() -> None:
    """Let peaks of memory begin anew, where the system can."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def status_bytes(name: str) -> int:
    """Return a size of this process, such as VmHWM, its peak."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


# What is to be done when a module has been imported.
HOOKS = {"torch": install, "safetensors": redirect_safetensors, "numpy": seed_numpy}


class Waiting:
    """A finder that calls the functions of ``HOOKS`` when modules have been imported."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.functions = dict(HOOKS)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Return the module's spec, with a loader that calls the function afterwards.

        A caller may look for a module without importing it, so the function stays until the module
        is imported.
        """
        if name not in self.functions:
            return None
        spec: Any = PathFinder.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                self.functions.pop(name)(self.recorder)

            spec.loader.exec_module = exec_module
        return spec


def begin() -> None:
    """Redirect writes, wait for torch, and leave ``sys.path`` as it would be without this file."""
    settings = json.loads(os.environ[VARIABLE])
    recorder = Recorder(settings)
    recorder.overlay = overlay.Overlay(settings["home"], recorder.refuse)
    if settings["allow_writes"]:
        recorder.overlay.left_alone = ("/",)
    else:
        overlay.install(recorder.overlay)
    if settings["inject"] == "amp-fp16":
        import ampmeter_scaling as scaling  # type: ignore[import-not-found]

        recorder.scaling = scaling.Scaling(recorder.refuse, recorder.warnings)
    sys.meta_path.insert(0, Waiting(recorder))
    random.seed(settings["seed"])  # each generator before the script can seed it itself
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != FOLDER]
    load("sitecustomize", sys.path)  # the user's, which this file hides


def load(name: str, path: list[str]) -> Any:
    """Import a module from some folders, whether it is imported already or not, if it is there."""
    spec = PathFinder.find_spec(name, path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    begin()
