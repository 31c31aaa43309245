"""Records the training steps of a script that knows nothing of it, inside the script's own process.

The launcher copies this file as ``sitecustomize.py`` into a folder on PYTHONPATH, so that it reaches every Python
process that the script starts: the children of torchrun, of accelerate launch and of ``multiprocessing``. It imports
nothing of this package but the overlay, which is copied beside it. A process that trains has a record of its events;
``bench.script.steps`` makes figures of them.
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
from contextlib import ExitStack, suppress
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
UNUSED = {20: "no optimizer of torch was built", 1000: "no optimizer took a step"}
"""After how many backward passes without a step a process is ended, and what is then true of it."""

STEP = ("s", "event", "optimizer", "backwards", "losses", "data_s", "marks", "skipped")
"""What is noted of a step, in a list: one costs less than a dictionary, and the caches are cold here."""


class Recorder:
    """Notes when optimizer steps end, and what else happened since the one before."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.ended = settings, False
        self.is_main = runs_script(sys.orig_argv, settings["main"])
        self.torch: Any = None
        self.overlay: Any = None
        self.warmup: int = settings["warmup"]
        self.total: int = settings["warmup"] + settings["steps"] + 1
        self.steps: list[list[Any]] = []
        self.optimizers: dict[int, tuple[int, str]] = {}
        self.extra, self.beat_s, self.scaled = 0, 0.0, (None, None)
        self.computed: dict[str, int] = {}
        self.profile: Any = None
        self.profile_bytes = 0
        self.settle: Callable[[], None] = lambda: None
        self.loads: list[tuple[float, float, float]] = []
        self.resident_bytes: int | None = None
        self.marks: set[str] = set()
        self.losses: list[Any] = []
        self.backwards, self.has_gradient, self.passes = 0, False, 0
        self.data_s: float | None = None
        os.register_at_fork(after_in_child=self.restart)

    def restart(self) -> None:
        """Forget what the parent did, in a child that it has forked: a data worker, or a rank."""
        self.is_main, self.profile = False, None
        self.steps, self.marks, self.losses = [], set(), []
        self.backwards, self.has_gradient, self.passes, self.extra = 0, False, 0, 0

    def stepped(self, optimizer: Any, skipped: bool = False) -> None:
        """Note the end of an optimizer's step, or that a GradScaler skipped it."""
        if self.ended:
            return
        cuda, steps, event = self.torch.cuda, self.steps, None
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            event = cuda.Event(enable_timing=True)
            event.record()
        now = time.perf_counter()
        if not self.has_gradient and steps:  # it belongs to the step before: SAM, Muon and Adam, or a script's bug
            self.extra += 1
            steps[-1][:2] = now, event
            return
        key, infinite = id(optimizer), getattr(optimizer, "found_inf", None)  # fused ones skip inside their step
        if key not in self.optimizers:
            self.optimizers[key] = len(self.optimizers), type(optimizer).__name__
        skip = skipped if infinite is None else infinite.clone()
        steps.append([now, event, key, self.backwards, self.losses, self.data_s, self.marks or (), skip])
        self.losses, self.backwards, self.has_gradient, self.data_s = [], 0, False, None
        if self.marks:
            self.marks = set()
        if len(steps) <= self.warmup:
            self._warm(len(steps))
        if now - self.beat_s > BEAT_S:
            self.beat_s = now
            with suppress(OSError), open(f"{self.settings['out']}.beat", "w") as file:
                file.write(str(len(steps)))

    def _warm(self, count: int) -> None:
        """Do what is due during warm-up, in which nothing is measured."""
        if count == max(1, self.warmup // 2):
            self.settle()
            if self.settings["census"]:
                self.profile_bytes = status_bytes("VmRSS") or 0
                self.profile = self.torch.profiler.profile(record_shapes=True)
                self.profile.__enter__()
        if count == self.warmup:
            self._end_profile()
            self.loads.append(machine_load())
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
        if self.steps or self.passes not in UNUSED:
            return
        optimizer = self.torch.optim.Optimizer
        built = any(isinstance(each, optimizer) for each in gc.get_objects())
        if built == (self.passes > min(UNUSED)):
            self.refuse(f"after {self.passes} backward passes {UNUSED[self.passes]}: it has an update rule of its own")

    def passed(self) -> None:
        """Note that a backward pass has ended: the profile ends with it if it has become large."""
        if self.profile is not None and (status_bytes("VmRSS") or 0) > self.profile_bytes + MOST_BYTES:
            self._end_profile()

    def finish(self) -> None:
        """Write what was recorded."""
        if self.ended or not (self.steps or self.is_main):
            return
        self.ended = True
        self._end_profile()  # a script that ended early is still under it
        if self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()
        self.loads.append(machine_load())
        steps = [dict(zip(STEP, step, strict=True)) for step in self.steps]
        origin = steps[0]["event"] if steps else None
        for step in steps:
            event, losses = step.pop("event"), step.pop("losses")
            known = [float(loss) for loss, version in losses if loss._version == version]
            step["loss"] = sum(known) if known and len(known) == len(losses) else None
            step["gpu_s"] = origin.elapsed_time(event) / 1e3 if origin and event else None
            step |= {"optimizer": self.optimizers[step["optimizer"]][0]}
            step |= {"marks": sorted(step["marks"]), "skipped": bool(step["skipped"])}
        self.write(
            {
                "whole": len(steps) >= self.total,
                "start_s": time.time() - time.perf_counter(),
                "steps": steps,
                "optimizers": [name for _, name in self.optimizers.values()],
                "extra_steps": self.extra,
                "computed": self.computed,
                "loads": self.loads,
                **peak(self.resident_bytes),
            }
        )

    def write(self, record: dict[str, Any]) -> None:
        """Write a record of this process for the launcher, whole or not at all."""
        path = f"{self.settings['out']}.{os.getpid()}"
        with open(f"{path}.part", "w") as file:
            json.dump({"rank": rank(), "world": world(), **record}, file)
        os.replace(f"{path}.part", path)

    def with_hook(self, environment: Any) -> dict[str, str]:
        """Return the environment of a process that the script starts, with the hook in it; None is this one's."""
        if environment is None:
            environment = os.environ
        site = os.path.dirname(os.path.abspath(__file__))
        paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", site)]
        hooked = {VARIABLE: json.dumps(self.settings), "PYTHONPATH": os.pathsep.join([site, *paths])}
        return {**environment, **hooked}

    def require_hook(self, command: Iterable[Any]) -> None:
        """End the process before it starts a Python without the hook."""
        words = [os.fsdecode(word) for word in command]
        if ignores_hook(words):
            self.refuse(f"it was about to start a Python in which its writes cannot be redirected: {words}")

    def refuse(self, why: str) -> None:
        """End the process because the script cannot be measured."""
        self.write({"refused": why})
        leave(REFUSED)


def rank() -> int:
    """Return this process's number among those that train together."""
    number = os.environ.get(
        "RANK", os.environ.get("LOCAL_RANK")
    )  # processes that Lightning starts have the latter only
    if number is not None:
        return int(number)
    process = sys.modules.get("multiprocessing.process")
    identity = process.current_process()._identity if process else ()
    return identity[-1] - 1 if identity else 0


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
        before = len(recorder.steps) + recorder.extra
        result = old(self, optimizer, *args, **kwargs)
        if len(recorder.steps) + recorder.extra == before:
            recorder.stepped(optimizer, skipped=True)
        return result

    @wrap(torch.amp.GradScaler, "scale")
    def _(old: Any, self: Any, outputs: Any) -> Any:
        result = old(self, outputs)
        recorder.scaled = (result, outputs)
        return result

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
        old(tensors, *args, **kwargs)
        recorder.passed()

    @wrap(torch.autograd, "grad")
    def _(old: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            recorder.begins()
        return old(*args, **kwargs)

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
    callback_handler.register_start_callback(lambda _args: recorder.marks.add("compile"))
    watch_forward(recorder)
    redirect_torch(recorder)
    recorder.resident_bytes = status_bytes("VmRSS")
    torch.manual_seed(recorder.settings["seed"])
    atexit.register(recorder.finish)


def redirect_torch(recorder: Recorder) -> None:
    """Hook into what torch writes by itself, and into the processes that its spawn starts."""
    import torch

    for owner in (torch, torch.jit):

        @wrap(owner, "save")
        def _(old: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.marks.add("checkpoint")
            return old(obj, recorder.overlay.writing(f), *args, **kwargs)

        @wrap(owner, "load")
        def _(old: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return old(recorder.overlay.reading(f), *args, **kwargs)

    for kind, name in (
        (torch.jit._script.RecursiveScriptModule, "save"),
        (torch.profiler.profile, "export_chrome_trace"),
    ):

        @wrap(kind, name)
        def _(old: Any, self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            return old(self, recorder.overlay.writing(path), *args, **kwargs)

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

    @wrap(sys.modules["safetensors"], "safe_open")
    def _(old: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        return old(recorder.overlay.reading(filename), *args, **kwargs)

    @wrap(sys.modules["safetensors"], "serialize_file")
    def _(old: Any, tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.marks.add("checkpoint")
        return old(tensors, recorder.overlay.writing(filename), *args, **kwargs)


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
    if inject in ("fp32", "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = inject == "tf32"
    dtype = torch.bfloat16 if inject == "amp-bf16" else None
    call: Any = module.__call__
    inside = threading.local()
    roots: set[type] = set()
    evaluated: dict[int, int] = {}

    # In place of hooks: dynamo inlines hooks, and skips them where it compiles.
    def outermost(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(inside, "forward", False):
            return call(self, *args, **kwargs)
        if not torch.is_grad_enabled():  # by module: a teacher's in each step is no evaluation of the model's
            number = evaluated.setdefault(id(self), len(evaluated))
            recorder.marks.add(f"evaluation ({type(self).__name__} {number})")
        if type(self) not in roots:
            if next(self.parameters(), None) is None:
                return call(self, *args, **kwargs)
            inner = self
            while isinstance(inner, module):
                roots.add(type(inner))
                inner = getattr(inner, "module", getattr(inner, "_orig_mod", None))
        inside.forward = True
        try:
            if dtype is None:
                return call(self, *args, **kwargs)
            with ExitStack() as stack:
                for device in ("cpu", "cuda")[: 1 + torch.cuda.is_initialized()]:
                    if not hasattr(inside, device):  # making one takes longer than entering it
                        setattr(inside, device, torch.autocast(device, dtype=dtype))
                    stack.enter_context(getattr(inside, device))
                out = call(self, *args, **kwargs)
            return to_fp32(out)
        finally:
            inside.forward = False

    def set_call(kind: type, function: Any) -> None:
        kind.__call__ = function  # type: ignore[method-assign]

    def settle() -> None:
        set_call(module, call)
        for kind in roots:
            if "__call__" not in vars(kind):
                set_call(kind, outermost)

    set_call(module, outermost)
    recorder.settle = settle


def to_fp32(value: Any) -> Any:
    """Return a module's output with its 16-bit tensors in fp32, as accelerate does."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, tuple):
        parts = map(to_fp32, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [to_fp32(part) for part in value]
    if isinstance(value, dict):  # transformers' ModelOutput, too: changed in place, for its constructor takes others
        for key in list(value):
            value[key] = to_fp32(value[key])
    return value


def census(profile: Any) -> dict[str, int]:
    """Count matrix products by the type of their first tensor; those of fp32 on a GPU by the switch of TF32, too.

    An optimizer's own products, such as Muon's in bfloat16, are not the model's and do not count; a step with a
    backward pass in it has a closure, whose products do.
    """
    import torch

    def during(steps: list[Any], event: Any) -> list[Any]:
        return [step for step in steps if step.start_ns() <= event.start_ns() < step.end_ns()]

    computed: dict[str, int] = {}
    events = profile.profiler.kineto_results.events()
    steps = [event for event in events if event.name().startswith("Optimizer.step#")]
    for event in events:
        if event.name().startswith("autograd::engine::"):
            steps = [step for step in steps if step not in during(steps, event)]
    for event in events:
        name = event.name().rpartition("::")[2]
        if name == NESTED or not (name in PRODUCTS or name.startswith(FUSED)) or during(steps, event):
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


def machine_load() -> tuple[float, float, float]:
    """Return the seconds that all cores were busy, those that there were, and those of this process's session."""
    tick, session, own = os.sysconf("SC_CLK_TCK"), os.getsid(0), 0
    try:
        with open("/proc/stat") as file:
            times = [int(word) for word in file.readline().split()[1:9]]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                own += (int(fields[11]) + int(fields[12])) * (int(fields[3]) == session)
    except OSError:
        return 0.0, 0.0, 0.0
    return (sum(times) - times[3] - times[4]) / tick, sum(times) / tick, own / tick


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


def runs_script(words: list[str], main: str) -> bool:
    """Say whether the words of an interpreter's command line start a script: a file's path, or a module's name."""
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        if rest[0] in ("-m", "-c"):
            return rest[0] == "-m" and rest[1:2] == [main]
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    return bool(rest) and os.path.realpath(rest[0]) == main


def begin() -> None:
    """Redirect writes, wait for torch, and leave ``sys.path`` as it would be without this file."""
    import ampmeter_overlay as overlay  # type: ignore[import-not-found]

    folder = os.path.dirname(os.path.abspath(__file__))
    settings = json.loads(os.environ[VARIABLE])
    recorder = Recorder(settings)
    recorder.overlay = overlay.Overlay(settings["home"], settings["started_s"], recorder.refuse)
    if settings["allow_writes"]:
        recorder.overlay.left_alone = ("/",)
    else:
        overlay.install(recorder.overlay)
    keep_in_environment(recorder)
    functions = {
        "torch": install,
        "safetensors": redirect_safetensors,
        "subprocess": watch_children,
        "numpy": seed_numpy,
    }
    waiting = {name: functools.partial(call, recorder) for name, call in functions.items()}
    for name in [name for name in waiting if name in sys.modules]:  # by a .pth file of some package
        waiting.pop(name)()
    sys.meta_path.insert(0, Waiting(waiting))
    random.seed(settings["seed"])  # each generator before the script can seed it itself
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != folder]
    if (spec := importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)) is not None:
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)  # type: ignore[union-attr]


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    begin()
