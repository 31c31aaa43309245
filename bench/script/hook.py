"""Records the training steps of a script that knows nothing of it, inside the script's own process.

The launcher copies this file as ``sitecustomize.py`` into a folder on PYTHONPATH, so that it also reaches the children
of torchrun and accelerate launch. It imports nothing of this package, and acts only in a process whose main module is
the script. It records events; ``bench.script.steps`` makes figures of them.
"""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import importlib.util
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

VARIABLE = "AMPMETER_HOOK"
"""The variable with the settings, as JSON: those that ``bench.launch.script`` writes."""
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
"""Exit code after a write that was refused."""


STEP = ("s", "event", "optimizer", "backwards", "losses", "data_s", "marks", "skipped")
"""What is noted of a step, in a list: one costs less than a dictionary, and the caches are cold here."""


class Recorder:
    """Notes when optimizer steps end, and what else happened since the one before."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.ended = settings, False
        self.torch: Any = None
        self.warmup: int = settings["warmup"]
        self.total: int = settings["warmup"] + settings["steps"] + 1
        self.steps: list[list[Any]] = []
        self.optimizers: dict[int, tuple[int, str]] = {}
        self.extra, self.beat_s, self.scaled = 0, 0.0, (None, None)
        self.computed: dict[str, int] = {}
        self.profile: Any = None
        self.settle: Callable[[], None] = lambda: None
        self.loads: list[tuple[float, float, float]] = []
        self.resident_bytes: int | None = None
        self.marks: set[str] = set()
        self.losses: list[Any] = []
        self.backwards, self.has_gradient = 0, False
        self.data_s: float | None = None
        os.register_at_fork(after_in_child=self.rest)

    def rest(self) -> None:
        """Record nothing from now on, as in a data worker that was forked."""
        self.ended = True

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
            with suppress(OSError), open(f"{self.path}.beat", "w") as file:
                file.write(str(len(steps)))

    def _warm(self, count: int) -> None:
        """Do what is due during warm-up, in which nothing is measured."""
        if count == max(1, self.warmup // 2):
            self.settle()
            if self.settings["census"]:
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
        """End the process if all steps were measured: a new one begins, so that the last one is whole."""
        if len(self.steps) >= self.total and not self.ended:
            self.finish()
            leave(0)

    def finish(self) -> None:
        """Write what was recorded."""
        if self.ended or os.path.exists(self.path):  # a child's write was refused
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
                "start_s": time.time() - time.perf_counter(),
                "steps": steps,
                "optimizers": [name for _, name in self.optimizers.values()],
                "extra_steps": self.extra,
                "computed": self.computed,
                "loads": self.loads,
                **peak(self.resident_bytes),
            }
        )

    @property
    def path(self) -> str:
        """Where the record of this rank goes; processes that Lightning starts itself have a LOCAL_RANK only."""
        return f"{self.settings['out']}.{os.environ.get('RANK', os.environ.get('LOCAL_RANK', '0'))}"

    def write(self, record: dict[str, Any]) -> None:
        """Write a record for the launcher, whole or not at all."""
        with open(f"{self.path}.part", "w") as file:
            json.dump({"group": os.getpgid(0), "world": int(os.environ.get("WORLD_SIZE", "1")), **record}, file)
        os.replace(f"{self.path}.part", self.path)

    def require_scratch(self, path: Any, function: str) -> None:
        """End the process before it writes a checkpoint to another place than its scratch folder."""
        self.marks.add("checkpoint")
        if not isinstance(path, str | os.PathLike):
            path = getattr(path, "name", None)
        if not isinstance(path, str | os.PathLike) or self.settings["allow_writes"]:
            return
        target = os.path.realpath(os.fspath(path))
        if not target.startswith(os.path.realpath(self.settings["scratch"]) + os.sep):
            self.write({"refused": f"{function} was about to write '{target}'"})
            leave(REFUSED)


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
        recorder.has_gradient = True
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            kept = loss.detach()  # read at the end, if nothing has changed it in place: no synchronisation here
            recorder.losses.append((kept, kept._version))
        return old(tensors, *args, **kwargs)

    @wrap(torch.autograd, "grad")
    def _(old: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            recorder.begins()
            recorder.has_gradient = True
        return old(*args, **kwargs)

    @wrap(torch, "save")
    def _(old: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.require_scratch(f, "torch.save")
        return old(obj, f, *args, **kwargs)

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
    recorder.resident_bytes = status_bytes("VmRSS")
    torch.manual_seed(recorder.settings["seed"])
    atexit.register(recorder.finish)


def seed_numpy(recorder: Recorder) -> None:
    """Seed NumPy, which has just been imported."""
    import numpy as np

    np.random.seed(recorder.settings["seed"])


def guard(recorder: Recorder) -> None:
    """Hook into safetensors, which has just been imported."""

    @wrap(sys.modules["safetensors.torch"], "save_file")
    def _(old: Any, tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.require_scratch(filename, "safetensors")
        return old(tensors, filename, *args, **kwargs)


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
    """Count matrix products by the type of their first tensor; those of fp32 on a GPU by the switch of TF32, too."""
    import torch

    computed: dict[str, int] = {}
    for event in profile.profiler.kineto_results.events():
        name = event.name().rpartition("::")[2]
        if name == NESTED or not (name in PRODUCTS or name.startswith(FUSED)):
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

    def __init__(self, functions: dict[str, Callable[[], None]]) -> None:
        self.functions = functions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that another finder has, with a loader that calls the function afterwards."""
        if (function := self.functions.pop(name, None)) is None:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        if (spec := next(filter(None, specs), None)) is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                function()

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
    """Leave sys.path as it would be without this file, run the sitecustomize that it hides, and wait for torch."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != folder]
    if (spec := importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)) is not None:
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)  # type: ignore[union-attr]
    settings = json.loads(os.environ[VARIABLE])
    if not runs_script(sys.orig_argv, settings["main"]):
        return
    recorder = Recorder(settings)
    functions = {"torch": install, "safetensors.torch": guard, "numpy": seed_numpy}
    sys.meta_path.insert(0, Waiting({name: functools.partial(call, recorder) for name, call in functions.items()}))
    random.seed(settings["seed"])  # each generator before the script can seed it itself


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    begin()
