"""Records the training steps of a script that knows nothing of it, inside the script's own process.

The launcher copies this file as ``sitecustomize.py`` into a folder on PYTHONPATH, so that it reaches every Python
process that the script starts: the children of torchrun, of accelerate launch and of ``multiprocessing``. It imports
nothing of this package but the overlay and the loss scaling, which are copied beside it. A process that trains has a
record of its events; ``bench.script.steps`` makes figures of them.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

VARIABLE = "AMPMETER_HOOK"
"""The variable with the settings, as JSON: those that ``bench.script.launcher`` writes."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
FUSED = ("_scaled_dot_product_", "_linear_pointwise", "_convolution_pointwise", "mkldnn_rnn_layer")
"""Beginnings of the names of operators that are products, too."""
NAMES = {"float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64"}
"""Types as torch calls them, by the profiler's names."""
NESTED = "_scaled_dot_product_attention_math"
"""Consists of other products."""
BEAT_S = 5.0
"""How often the number of steps is written, for the launcher."""
REFUSED = 3
"""Exit code of a process that ended itself because it cannot be measured."""
RANKS = "AMPMETER_RANKS"
"""The variable with the number of processes that ``torch.multiprocessing.spawn`` starts."""
MOST_BYTES = 2**28
"""How much the process may grow under the profiler, which takes about six times as much again to end."""
UNBUILT, UNUSED = 20, 1000
"""After how many backward passes without a step a process is ended, where no optimizer was built and where one was."""


class Recorder:
    """Notes when optimizer steps end, and what else happened since the one before."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.warmup: int = settings["warmup"]
        self.total: int = settings["warmup"] + settings["steps"] + 1
        self.torch: Any = None
        self.scaling: Any = None
        """The loss scaling that is entered from outside, if any is."""
        self.overlay: Any = None
        self.settle: Callable[[], None] = lambda: None
        self.resident_bytes: int | None = None
        self.profile_bytes, self.beat_s, self.ended = 0, 0.0, False
        self.restart()
        os.register_at_fork(after_in_child=self.restart)

    def restart(self) -> None:
        """Begin anew: in a child that this process has forked, a data worker or a rank, without the parent's steps."""
        self.steps: list[dict[str, Any]] = []
        self.optimizers: dict[int, str] = {}
        self.computed: dict[str, int] = {}
        self.marks: set[str] = set()
        self.losses: list[Any] = []
        self.profile: Any = None
        self.data_s: float | None = None
        self.scaled = (None, None)
        self.backwards, self.has_gradient, self.passes, self.calls = 0, False, 0, 0
        self.uses_grad = False

    def stepped(self, optimizer: Any, skipped: bool = False) -> None:
        """Note the end of an optimizer's step, or that a GradScaler skipped it."""
        if self.ended:
            return
        cuda, steps, event = self.torch.cuda, self.steps, None
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            event = cuda.Event(enable_timing=True)
            event.record()
        now = time.perf_counter()
        self.calls += 1
        if not self.has_gradient and steps:  # it belongs to the step before: SAM, Muon and Adam, or a script's bug
            steps[-1].update(s=now, event=event)
            return
        self.optimizers.setdefault(id(optimizer), type(optimizer).__name__)
        infinite = getattr(optimizer, "found_inf", None)  # fused ones skip inside their step
        step = {
            "s": now,
            "event": event,
            "optimizer": id(optimizer),
            "backwards": self.backwards,
            "losses": self.losses,
            "data_s": self.data_s,
            "marks": self.marks,
            "skipped": skipped if infinite is None else infinite.clone(),
        }
        steps.append(step)
        self.losses, self.backwards, self.has_gradient, self.data_s, self.marks = [], 0, False, None, set()
        if len(steps) <= self.warmup:
            self._warm(len(steps))
        if now - self.beat_s > BEAT_S:
            self.beat_s = now
            with suppress(OSError), open(f"{self.settings['home']}/beat", "w") as file:
                file.write(str(len(steps)))

    def _warm(self, count: int) -> None:
        """Do what is due during warm-up, in which nothing is measured."""
        if count == self.warmup // 2:
            self.settle()
            if self.settings["census"]:
                self.profile_bytes = status_bytes("VmRSS") or 0
                self.profile = self.torch.profiler.profile(record_shapes=True)
                self.profile.__enter__()
        if count == self.warmup:
            self._end_profile()
            reset_peak()

    def _end_profile(self) -> None:
        if self.profile is not None:
            self.profile.__exit__(None, None, None)
            self.computed, self.profile = census(self.profile), None

    def begins(self) -> None:
        """Note that a backward pass begins.

        The process ends if all steps were measured: the last one is whole. It also ends if no step was seen in many
        passes, for the script may go on for ever.
        """
        if self.ended:
            return
        if len(self.steps) >= self.total:
            self.finish()
            leave(0)
        self.has_gradient = True
        self.passes += 1
        if self.steps or self.passes not in (UNBUILT, UNUSED):
            return
        optimizer = self.torch.optim.Optimizer
        if self.passes == UNUSED or not any(isinstance(each, optimizer) for each in gc.get_objects()):
            self.refuse(
                f"no optimizer of torch took a step in {self.passes} backward passes: has it its own update rule?"
            )

    def passed(self) -> None:
        """Note that a backward pass has ended: the profile ends with it if it has become large."""
        if self.profile is not None and (status_bytes("VmRSS") or 0) > self.profile_bytes + MOST_BYTES:
            self._end_profile()

    def finish(self) -> None:
        """Write what was recorded, if this process took steps."""
        if self.ended or not self.steps:
            return
        self.ended = True
        self._end_profile()  # a script that ended early is still under it
        if self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()
        optimizers = list(self.optimizers)
        origin = self.steps[0]["event"]
        for step in self.steps:
            event, losses = step.pop("event"), step.pop("losses")
            known = [float(loss) for loss, version in losses if loss._version == version]
            step["loss"] = sum(known) if known and len(known) == len(losses) else None
            step["gpu_s"] = origin.elapsed_time(event) / 1e3 if origin and event else None
            step["optimizer"] = optimizers.index(step["optimizer"])
            step["marks"], step["skipped"] = sorted(step["marks"]), bool(step["skipped"])
        self.write(
            {
                "whole": len(self.steps) >= self.total,
                "start_s": time.time() - time.perf_counter(),
                "steps": self.steps,
                "optimizers": list(self.optimizers.values()),
                "computed": self.computed,
                "without_scale": self.scaling is not None and self.uses_grad,
                **peak(self.resident_bytes),
            }
        )

    def write(self, record: dict[str, Any]) -> None:
        """Write a record of this process for the launcher, whole or not at all."""
        path = f"{self.settings['home']}/out.{os.getpid()}"
        with open(f"{path}.part", "w") as file:
            json.dump({"world": world(), **record}, file)
        os.replace(f"{path}.part", f"{path}.json")

    def with_hook(self, environment: Any) -> dict[str, str]:
        """Return the environment of a process that the script starts, with the hook in it; None is this one's."""
        given = os.environ if environment is None else environment
        paths = filter(None, (os.path.dirname(os.path.abspath(__file__)), given.get("PYTHONPATH")))
        return {**given, VARIABLE: json.dumps(self.settings), "PYTHONPATH": os.pathsep.join(paths)}

    def require_hook(self, command: Iterable[Any]) -> None:
        """End the process before it starts a Python without the hook."""
        words = [os.fsdecode(word) for word in command]
        if ignores_hook(words):
            self.refuse(f"it was about to start a Python in which its writes cannot be redirected: {words}")

    def refuse(self, why: str) -> None:
        """End the process because the script cannot be measured."""
        self.write({"refused": why})
        leave(REFUSED)


def world() -> int:
    """Return how many processes train together, as far as torchrun, torch's spawn or its process group tell."""
    sizes = [int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", RANKS)]
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        sizes.append(distributed.get_world_size())
    return max(sizes)


def leave(code: int) -> None:
    """End the process at once: no except, finally or atexit of the script's runs."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator that puts a function, which gets the old one first, in the place of an attribute."""
    old = getattr(owner, name)

    def replace(wrapper: Callable[..., Any]) -> None:
        @functools.wraps(old)
        def new(*args: Any, **kwargs: Any) -> Any:
            return wrapper(old, *args, **kwargs)

        setattr(owner, name, new)

    return replace


def install(recorder: Recorder) -> None:
    """Hook into torch, which has just been imported."""
    import torch
    from torch._dynamo.callback import callback_handler
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import dataloader

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # else compiled optimizers trace it
    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        recorder.stepped(optimizer)

    register_optimizer_step_post_hook(after_step)

    @wrap(torch.amp.GradScaler, "_maybe_opt_step")
    def _(old: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = recorder.calls
        result = old(self, optimizer, *args, **kwargs)
        if recorder.calls == before:
            recorder.stepped(optimizer, skipped=True)
        return result

    @wrap(torch.amp.GradScaler, "scale")
    def _(old: Any, self: Any, outputs: Any) -> Any:
        if recorder.scaling is not None and self is not recorder.scaling.scaler and self.is_enabled():
            recorder.refuse("it scales its loss itself: give the option that turns that on in --arm, not --inject")
        result = old(self, outputs)
        recorder.scaled = (result, outputs)
        return result

    @wrap(dataloader._BaseDataLoaderIter, "__next__")
    def _(old: Any, self: Any) -> Any:
        started = time.perf_counter()
        try:
            return old(self)
        finally:
            recorder.data_s = (recorder.data_s or 0.0) + time.perf_counter() - started

    @wrap(dataloader.DataLoader, "__iter__")
    def _(old: Any, self: Any) -> Any:
        recorder.marks.add("epoch")
        return old(self)

    @wrap(torch.nn.Module, "eval")
    def _(old: Any, self: Any) -> Any:
        recorder.marks.add("evaluation")
        return old(self)

    recorder.torch = torch
    if recorder.scaling is not None:
        recorder.scaling.install()
    callback_handler.register_start_callback(lambda _args: recorder.marks.add("compile"))
    watch_backward(recorder)
    watch_forward(recorder)
    redirect_torch(recorder)
    recorder.resident_bytes = status_bytes("VmRSS")
    torch.manual_seed(recorder.settings["seed"])
    atexit.register(recorder.finish)


def watch_backward(recorder: Recorder) -> None:
    """Note backward passes and their losses, which are scaled where that is asked for."""
    import torch

    @wrap(torch.autograd, "backward")  # Tensor.backward calls it
    def _(old: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.begins()
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if recorder.scaled[0] is not None and recorder.scaled[0] is loss:
            loss = recorder.scaled[1]
        recorder.scaled = (None, None)
        recorder.backwards += 1
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            kept = loss.detach()  # read at the end, if nothing has changed it in place: no synchronisation here
            recorder.losses.append((kept, kept._version))
        if recorder.scaling is None:
            old(tensors, *args, **kwargs)
        else:
            recorder.scaling.backward(old, tensors, *args, **kwargs)
            recorder.scaled = (None, None)
        recorder.passed()

    @wrap(torch.autograd, "grad")
    def _(old: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            recorder.begins()
            recorder.uses_grad = True
        return old(*args, **kwargs)


def redirect(recorder: Recorder, owner: Any, name: str, place: int, keyword: str, *, reads: bool = False) -> None:
    """Let a function that saves or loads a file use the redirected one; its path is an argument by place or keyword."""

    @wrap(owner, name)
    def _(old: Any, *args: Any, **kwargs: Any) -> Any:
        words: Any = kwargs if keyword in kwargs else list(args)
        key = keyword if keyword in kwargs else place
        if reads:
            words[key] = recorder.overlay.reading(words[key])
        else:
            recorder.marks.add("checkpoint")
            words[key] = recorder.overlay.writing(words[key])
        return old(*args, **kwargs) if words is kwargs else old(*words, **kwargs)


def redirect_torch(recorder: Recorder) -> None:
    """Hook into what torch writes by itself, and into the processes that its spawn starts."""
    import torch

    for owner in (torch, torch.jit):
        redirect(recorder, owner, "save", 1, "f")
        redirect(recorder, owner, "load", 0, "f", reads=True)
    redirect(recorder, torch.jit._script.RecursiveScriptModule, "save", 1, "f")
    redirect(recorder, torch.profiler.profile, "export_chrome_trace", 1, "path")

    @wrap(torch.multiprocessing, "start_processes")
    def _(old: Any, fn: Any, args: Any = (), nprocs: int = 1, *rest: Any, **kwargs: Any) -> Any:
        os.environ[RANKS] = str(nprocs)
        return old(fn, args, nprocs, *rest, **kwargs)


def seed_numpy(recorder: Recorder) -> None:
    """Seed NumPy, which has just been imported."""
    import numpy as np

    np.random.seed(recorder.settings["seed"])


def redirect_safetensors(recorder: Recorder) -> None:
    """Hook into safetensors, which has just been imported; its parts for torch and others call these functions."""
    redirect(recorder, sys.modules["safetensors"], "safe_open", 0, "filename", reads=True)
    redirect(recorder, sys.modules["safetensors"], "serialize_file", 1, "filename")


def watch_children(recorder: Recorder) -> None:
    """Hook into subprocess, which has just been imported: a Python that it starts has the hook, too."""
    module: Any = sys.modules["subprocess"]

    @wrap(module.Popen, "__init__")
    def _(old: Any, self: Any, args: Any, *rest: Any, env: Any = None, **kwargs: Any) -> Any:
        recorder.require_hook([args] if isinstance(args, str | bytes | os.PathLike) else args)
        return old(self, args, *rest, env=recorder.with_hook(env), **kwargs)


def keep_in_environment(recorder: Recorder) -> None:
    """Let every process that inherits this one's environment have the hook, whatever the script sets there."""
    put, unset = os.putenv, os.unsetenv

    def putenv(name: Any, value: Any) -> None:
        word = os.fsdecode(name)
        put(word, recorder.with_hook({word: os.fsdecode(value)})[word])

    def unsetenv(name: Any) -> None:
        hooked = recorder.with_hook({})
        word = os.fsdecode(name)
        put(word, hooked[word]) if word in hooked else unset(word)

    os.putenv, os.unsetenv = putenv, unsetenv
    for name in ("execve", "posix_spawn", "posix_spawnp"):

        @wrap(os, name)
        def _(old: Any, path: Any, args: Any, env: Any, *rest: Any, **kwargs: Any) -> Any:
            recorder.require_hook(args)
            return old(path, args, recorder.with_hook(env), *rest, **kwargs)

    @wrap(os, "system")
    def _(old: Any, command: Any) -> Any:
        recorder.require_hook([command])
        return old(command)


def ignores_hook(words: list[str]) -> bool:
    """Return whether a command starts a Python that ignores PYTHONPATH or imports no ``sitecustomize``."""
    words = " ".join(words).split()
    while words:
        word = words.pop(0)
        if not re.fullmatch(r"[\"']?([^-].*/)?python[\d.]*[\"']?", word) or os.path.isdir(word):
            continue
        while words and words[0].startswith("-") and words[0] not in ("-c", "-m"):
            option = words.pop(0)
            if option in ("-W", "-X"):  # the next word is its own
                del words[:1]
            elif re.fullmatch("-[bBdiOPqsuvx]*[EIS][bBdEiIOPqsSuvx]*", option):
                return True
    return False


def watch_forward(recorder: Recorder) -> None:
    """Enter the injected autocast at the outermost forward of a module, and note evaluation there.

    ``Module.__call__`` is replaced until the outermost modules are known, then only that of their classes: what it
    costs is then paid once or a few times a step, and not by each layer.
    """
    import torch

    inject, module = recorder.settings["inject"], torch.nn.Module
    dtype = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(inject)
    if inject in ("fp32", "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = inject == "tf32"
    call: Any = module.__call__
    inside = threading.local()
    roots: set[type] = set()
    evaluated: dict[int, int] = {}

    def enter(forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the outermost forward under the injected autocast."""
        inside.forward = True
        try:
            if dtype is None:
                return forward(*args, **kwargs)
            with torch.autocast("cuda" if torch.cuda.is_initialized() else "cpu", dtype=dtype):
                out = forward(*args, **kwargs)
            return to_fp32(out)
        finally:
            inside.forward = False

    def is_inner() -> bool:
        return torch.compiler.is_compiling() or getattr(inside, "forward", False)

    def note_evaluation(of: Any, name: str) -> None:
        if not torch.is_grad_enabled():  # by module: a teacher's in each step is no evaluation of the model's
            number = evaluated.setdefault(id(of), len(evaluated))
            recorder.marks.add(f"evaluation ({name} {number})")

    # In place of hooks: dynamo inlines hooks, and skips them where it compiles.
    def outermost_of(call: Any) -> Any:
        def outermost(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_inner():
                return call(self, *args, **kwargs)
            note_evaluation(self, type(self).__name__)
            if type(self) not in roots:
                if next(self.parameters(), None) is None:
                    return call(self, *args, **kwargs)
                inner = self
                while isinstance(inner, module):
                    roots.add(type(inner))
                    inner = getattr(inner, "module", getattr(inner, "_orig_mod", None))
            return enter(call, self, *args, **kwargs)

        return outermost

    def settle() -> None:
        module.__call__ = call  # type: ignore[method-assign]
        calls = {kind: kind.__call__ for kind in roots}  # torch.compile's class has its own
        for kind, own in calls.items():
            kind.__call__ = outermost_of(own)  # type: ignore[method-assign]

    @wrap(torch, "compile")
    def _(old: Any, model: Any = None, **kwargs: Any) -> Any:
        compiled = old(model, **kwargs)
        if dtype is None or model is None or isinstance(model, module):
            return compiled

        # A function, or a module's forward, which is called without its module.
        @functools.wraps(compiled)
        def entered(*args: Any, **kwargs: Any) -> Any:
            if is_inner() or isinstance(getattr(model, "__self__", None), torch.optim.Optimizer):
                return compiled(*args, **kwargs)
            note_evaluation(model, getattr(model, "__name__", ""))
            return enter(compiled, *args, **kwargs)

        return entered

    module.__call__ = outermost_of(call)  # type: ignore[method-assign]
    recorder.settle = settle


def to_fp32(value: Any) -> Any:
    """Return a module's output with its 16-bit tensors in fp32, as accelerate does."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    return torch.utils._pytree.tree_map_only(torch.Tensor, to_fp32, value)


def census(profile: Any) -> dict[str, int]:
    """Count matrix products by the type of their first tensor; those of fp32 on a GPU by the switch of TF32, too.

    An optimizer's own products, such as Muon's in bfloat16, are not the model's and do not count; a step with a
    backward pass in it has a closure, whose products do.
    """
    import torch

    events = profile.profiler.kineto_results.events()
    passes = [event.start_ns() for event in events if event.name().startswith("autograd::engine::")]
    updates = []
    for event in events:
        if event.name().startswith("Optimizer.step#"):
            begin, end = event.start_ns(), event.end_ns()
            if not any(begin <= start < end for start in passes):
                updates.append((begin, end))
    computed: dict[str, int] = {}
    for event in events:
        name = event.name().rpartition("::")[2]
        is_product = name != NESTED and (name in PRODUCTS or name.startswith(FUSED))
        if not is_product or any(begin <= event.start_ns() < end for begin, end in updates):
            continue
        word = next(filter(None, event.dtypes()), "?")
        kind = NAMES.get(word, word)
        if kind == "float32" and torch.cuda.is_initialized() and uses_tf32(convolution="conv" in name):
            kind = "tf32"
        computed[kind] = computed.get(kind, 0) + 1
    return computed


def uses_tf32(*, convolution: bool) -> bool:
    """Return a switch of TF32; from torch 2.9 on, ``allow_tf32`` raises where a script has set ``fp32_precision``."""
    import torch

    old = torch.backends.cudnn if convolution else torch.backends.cuda.matmul
    switch = getattr(old, "conv", old) if convolution else old
    return bool(switch.fp32_precision == "tf32" if hasattr(switch, "fp32_precision") else old.allow_tf32)


def reset_peak() -> None:
    """Let peaks of memory begin anew, where the system can."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak(before: int | None) -> dict[str, int | None]:
    """Return the peaks of memory: of a GPU what was allocated, of the process what it added to ``before``."""
    import torch

    most, gpu = status_bytes("VmHWM"), torch.cuda.is_initialized()
    return {
        "resident_bytes": None if most is None or before is None else max(0, most - before),
        "allocated_bytes": torch.cuda.max_memory_allocated() if gpu else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if gpu else None,
    }


def status_bytes(name: str) -> int | None:
    """Return a size of this process, such as VmHWM; None where the system does not say."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return None


class Waiting:
    """A finder that calls functions when modules have been imported, and is then gone."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self.functions = functions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that another finder has, with a loader that calls the function afterwards.

        A caller may look for a module without importing it, so the function stays until the module is imported.
        """
        if name not in self.functions:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        if (spec := next(filter(None, specs), None)) is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.functions.pop(name, lambda: None)()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


HOOKS = {"torch": install, "safetensors": redirect_safetensors, "subprocess": watch_children, "numpy": seed_numpy}
"""What is to be done when a module has been imported."""


def begin() -> None:
    """Redirect writes, wait for torch, and leave ``sys.path`` as it would be without this file."""
    import ampmeter_overlay as overlay  # type: ignore[import-not-found]

    folder = os.path.dirname(os.path.abspath(__file__))
    settings = json.loads(os.environ[VARIABLE])
    recorder = Recorder(settings)
    recorder.overlay = overlay.Overlay(settings["home"], settings["started_s"], recorder.refuse)
    if settings["inject"] == "amp-fp16":
        import ampmeter_scaling as scaling  # type: ignore[import-not-found]

        recorder.scaling = scaling.Scaling(recorder.refuse)
    if settings["allow_writes"]:
        recorder.overlay.left_alone = ("/",)
    else:
        overlay.install(recorder.overlay)
    keep_in_environment(recorder)
    waiting: dict[str, Callable[[], None]] = {}
    for name, function in HOOKS.items():
        if name in sys.modules:  # by a .pth file of some package
            function(recorder)
        else:
            waiting[name] = functools.partial(function, recorder)
    sys.meta_path.insert(0, Waiting(waiting))
    random.seed(settings["seed"])  # each generator before the script can seed it itself
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != folder]
    if (spec := importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)) is not None:
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)  # type: ignore[union-attr]


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    begin()
