"""Which modules autocast harms: gradients with any set of modules in fp32, and the search.

``Narrowing`` runs a forward and backward pass in which the own operations of each module have a
state: kept in fp32, or narrow as autocast computes them. ``Narrowing.score`` is the error of
gradients, and ``search`` finds a smallest set of modules to keep. A set from which no module can be
dropped is 1-minimal (Zeller and Hildebrandt, 2002).
"""

from __future__ import annotations

import copy
import functools
import math
import re
import statistics
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from bench.measure.gradients import Loss, cast, distance, named_gradients, stop_dropping
from bench.training.keep import lies_in

# Errors of gradients that are no harm, by the narrow type.
ENOUGH = {torch.bfloat16: 1 / 8, torch.float16: 1 / 20}
# An error that is harm whatever the modules add up to.
HARM = 0.5
# A module whose error is above so many medians is none of those whose sum is the floor.
OUTLIER = 10
# So many modules are a small set even where they are most of the model's.
FEW = 3
# A gradient that changes by a larger share where weights change by a rounding holds rounding alone,
# as that of a bias before batch norm does.
ROUNDING = 0.01
# A loss scale begins at GradScaler's and falls by this factor while gradients overflow.
FIRST_SCALE = 2.0**16
SCALE_STEP = 16.0
# Passes of a search beside one for each module, about.
PASSES = 50
# Operators that compute nothing.
VIEWS = re.compile(
    "view|t|transpose|expand|permute|_unsafe_view|unsqueeze|slice|select|split|detach|alias|unbind"
    "|squeeze|reshape|_reshape_alias|_to_copy|clone|empty|zeros|ones|full|lift_fresh"
)

# By parameter, in the model's order.
Gradients = dict[str, Tensor]


class _OwnOperations(TorchDispatchMode):
    """Collects the modules whose forward computes something itself, not in modules in them."""

    def __init__(self, stack: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stack = stack
        self.names = set[str]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if self._stack and not VIEWS.fullmatch(func.overloadpacket.__name__):
            for leaf in tree_leaves(output):
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    self.names.add(self._stack[-1])
        return output


class Narrowing:
    """A model whose modules can each be kept in fp32 while the others are narrow.

    A kept module gets floating inputs in fp32 and runs with autocast off; what a module returns to
    a kept parent is widened. A module inside a kept one has a state of its own. With ``replay`` a
    narrow module gets its inputs in the types of the run in which all are narrow, although their
    producers are in fp32 now: else types would flow from the producers, and a module that is narrow
    alone would seem to do no harm.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Sequence[Any],
        dtype: torch.dtype,
    ) -> None:
        """Copy ``model``, in fp32, with dropout off, and take the exact gradients of each batch.

        The ``loss`` of (model, batch) is computed inside autocast's region, which narrows to
        ``dtype``. A float16 loss is scaled.
        """
        self.model = copy.deepcopy(model)
        self.batches = batches
        self.dtype = dtype
        self._loss = loss
        stop_dropping(self.model)
        self.references: list[Gradients] = []
        self._signal: list[list[str]] = []
        """For each batch the parameters whose gradients are more than rounding."""
        for batch in batches:
            exact = self._plain_gradients(batch)
            rounded = self._plain_gradients(batch, torch.finfo(torch.float32).eps)
            signal = []
            for name, gradient in exact.items():
                if distance([(rounded[name], gradient)]) <= ROUNDING:
                    signal.append(name)
            self.references.append(exact)
            self._signal.append(signal)
        self._device = next(model.parameters()).device.type
        self._buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        self._stack: list[str] = []
        self._calls = Counter[str]()
        self._types: dict[tuple[str, int], Any] = {}
        self._replay = False
        self.raised: RuntimeError | None = None
        """What the first step raised that could not be computed in the narrow type."""
        self.candidates = [name for name, _ in self.model.named_modules()]
        """Modules with operations of their own, by name; the model itself has the empty name."""
        self._kept = set(self.candidates)
        for name, module in self.model.named_modules():
            module.forward = self._stateful(name, module.forward)
        # With all kept: the pass says which of them compute anything themselves.
        own = _OwnOperations(self._stack)
        with own, torch.no_grad():
            loss(self.model, batches[0])
        self.candidates = [name for name in self.candidates if name in own.names]

    def _plain_gradients(self, batch: Any, change: float = 0.0) -> Gradients:
        """Return fp32's gradients of a copy whose weights differ by a random share of this size."""
        model = copy.deepcopy(self.model)
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + change * torch.randn_like(weight))
        # The same randomness in the model for each change.
        torch.manual_seed(0)
        self._loss(model, batch).backward()
        return dict(named_gradients(model, model.parameters()))

    def _stateful(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*inputs: Any, **named: Any) -> Any:
            parent_kept = bool(self._stack) and self._stack[-1] in self._kept
            if name in self.candidates:
                inputs, named = self._received(name, (inputs, named))
                self._stack.append(name)
                with self._autocast(enabled=name not in self._kept):
                    output = forward(*inputs, **named)
                self._stack.pop()
            else:
                output = forward(*inputs, **named)
            if parent_kept:
                return cast(output, torch.float32)
            return output

        return run

    def _autocast(self, *, enabled: bool = True) -> torch.autocast:
        # A cached cast of a weight would outlive the state of its module.
        return torch.autocast(self._device, self.dtype, enabled=enabled, cache_enabled=False)

    def _received(self, name: str, inputs: Any) -> Any:
        """Return the inputs of a module's call in the types that it gets them in."""
        call = (name, self._calls[name])
        self._calls[name] += 1
        if name in self._kept:
            return cast(inputs, torch.float32)
        if not self._kept:
            self._types[call] = tree_map(_dtype, inputs)
        elif self._replay and call in self._types:
            return tree_map(self._narrowed, inputs, self._types[call])
        return inputs

    def _narrowed(self, leaf: Any, dtype: torch.dtype | None) -> Any:
        if dtype == self.dtype:
            return leaf.to(dtype)
        return leaf

    def error(
        self,
        kept: Collection[str],
        batch: int = 0,
        *,
        replay: bool = False,
    ) -> float:
        """Return the error of the gradients with some modules kept: 0 is fp32's own.

        It is infinite where they are not finite, or where the step raises in the narrow type.

        Args:
            kept: names of the candidates that are in fp32.
            batch: its number.
            replay: whether narrow modules get their inputs in the types of the run in which all are
                narrow.
        """
        self._kept = set(kept)
        self._replay = replay
        scale = FIRST_SCALE if self.dtype is torch.float16 else 1.0
        while True:  # the loss scale falls until all is finite
            try:
                loss, gradients = self._step(batch, scale)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # a type or a value that an operator does not take
                self.raised = self.raised or error
                return math.inf
            computed = (loss, *gradients.values())
            are_finite = [bool(tensor.isfinite().all()) for tensor in computed]
            if all(are_finite):
                return self.score(gradients, batch)
            if scale == 1.0 or not loss.isfinite():
                return math.inf
            scale /= SCALE_STEP

    def _step(self, batch: int, scale: float) -> tuple[Tensor, Gradients]:
        """Return the loss and the unscaled gradients of a step with a loss scale."""
        self.model.zero_grad()
        for buffer, before in self._buffers:
            buffer.copy_(before)
        self._calls.clear()
        self._stack.clear()
        torch.manual_seed(0)
        with self._autocast():
            loss = self._loss(self.model, self.batches[batch])
        (loss * scale).backward()
        unscaled = {}
        for name, gradient in named_gradients(self.model, self.model.parameters()):
            unscaled[name] = gradient.float() / scale
        return loss, unscaled

    def agreed(self, kept: Collection[str]) -> float:
        """Return the least error of the batches; infinite where it is on any of them.

        A unit near zero that changes its sign is a large error on a single batch, and no harm.
        """
        errors = []
        for number in range(len(self.batches)):
            errors.append(self.error(kept, number))
        if math.inf in errors:
            return math.inf
        return min(errors)

    def score(self, gradients: Gradients, batch: int) -> float:
        """Return the larger of the error of all gradients as a vector and the mean over parameters.

        The vector sees the sums of large gradients, and the mean those that are small throughout.
        The mean is over parameters whose fp32 gradient is more than rounding.
        """
        pairs = {}
        for name, exact in self.references[batch].items():
            pairs[name] = (gradients[name], exact)
        signal = self._signal[batch]
        squares = 0.0
        for name in signal:
            # At an error of 1 nothing is left of a gradient: more is no more harm.
            error = min(distance([pairs[name]]), 1.0)
            squares += error**2
        count = max(1, len(signal))
        mean = math.sqrt(squares / count)
        return max(mean, distance(pairs.values()))

    def within(self, names: Collection[str]) -> set[str]:
        """Return the candidates that are kept with these modules: they, and those in them."""
        kept = set()
        for candidate in self.candidates:
            if candidate in names or any(lies_in(candidate, name) for name in names):
                kept.add(candidate)
        return kept


def _dtype(leaf: Any) -> torch.dtype | None:
    return getattr(leaf, "dtype", None)


Answer = Literal["fine", "concentrated", "diffuse", "loss"]


@dataclass(kw_only=True, slots=True)
class Findings:
    """The answer of a search."""

    answer: Answer
    """Fine: nothing is needed. Concentrated: a few modules. Diffuse: no small set. Loss: what is
    computed outside of the modules, with all of them in fp32."""
    error: float
    """Of the gradients with nothing kept."""
    limit: float
    errors: dict[str, float] = field(default_factory=dict)
    """Of the gradients with one module narrow alone."""
    kept: tuple[str, ...] = ()
    """The modules to keep, without those that lie in others."""
    error_kept: float | None = None
    """Of the gradients with these kept."""
    raised: str = ""
    """What the step raises with nothing kept; empty where it is computed."""


def raised_text(error: RuntimeError | None) -> str:
    """Return what an error says, in a line, and the fault of a Function that raised it."""
    if error is None:
        return ""
    text = " ".join(str(error).split())
    is_function = False
    is_decorated = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        # The first argument of a Function's methods, by torch's convention.
        takes_ctx = code.co_varnames[:1] == ("ctx",)
        if takes_ctx and code.co_name in ("forward", "backward"):
            is_function = True
        if code.co_name in ("decorate_fwd", "decorate_bwd"):
            is_decorated = True
    if is_function and not is_decorated:
        text += "; its torch.autograd.Function lacks torch.amp's custom_fwd and custom_bwd"
    return text


def limit_of(errors: Collection[float], enough: float) -> float:
    """Return the limit, given the errors of modules narrow alone and the one that is no harm.

    It is twice what the modules without outliers add up to, which is left once the fragile ones are
    kept.
    """
    positive = [error for error in errors if 0 < error < math.inf]
    if not positive:
        return enough
    median = statistics.median_low(positive)
    usual = [error for error in positive if error <= OUTLIER * median]
    floor = math.hypot(*usual)
    return min(HARM, max(enough, 2 * floor))


def search(model: Narrowing, progress: Callable[[float], None] = lambda _share: None) -> Findings:
    """Find a smallest set of modules to keep so that the gradients' error is within the limit.

    It takes about as many passes as the model has modules, and 50 more.

    Raises:
        RuntimeError: the step raises it even with all modules kept.
    """
    enough = ENOUGH[model.dtype]
    candidates = model.candidates
    error = model.agreed(())
    if error <= enough:
        return Findings(answer="fine", error=error, limit=enough)
    raised = model.raised
    model.raised = None
    outside = model.agreed(candidates)
    if model.raised is not None:
        raise model.raised
    if outside > enough:
        return Findings(
            answer="loss",
            error=error,
            limit=enough,
            error_kept=outside,
        )
    errors = dict[str, float]()
    for name in candidates:
        others = [other for other in candidates if other != name]
        errors[name] = model.error(others, replay=True)
        progress(len(errors) / (len(candidates) + PASSES))
    limit = limit_of(errors.values(), enough)
    findings = Findings(
        answer="diffuse",
        error=error,
        limit=limit,
        errors=errors,
    )
    findings.raised = raised_text(raised)
    if error <= limit:
        return findings

    def fits(kept: Collection[str]) -> bool:
        return model.agreed(model.within(kept)) <= limit

    worst_first = sorted(candidates, key=errors.__getitem__, reverse=True)
    kept = model.within(_smallest(worst_first, fits))
    for name in candidates:
        if name in kept and not any(lies_in(name, each) for each in kept):
            findings.kept += (name,)
    findings.error_kept = model.agreed(kept)
    is_minority = 2 * len(kept) <= len(candidates)
    if is_minority or len(findings.kept) <= FEW:
        findings.answer = "concentrated"
    return findings


def _smallest(ranked: list[str], fits: Callable[[Collection[str]], bool]) -> set[str]:
    """Return modules that fit, and of which none can be dropped.

    The length of a list's start doubles until it fits; then what is not needed is dropped one by
    one, the last of the list first, so that few are left.
    """
    length = 1
    while length < len(ranked) and not fits(ranked[:length]):
        length *= 2
    start = ranked[:length]
    kept = set(start)
    for name in reversed(start):
        rest = kept - {name}
        if rest and fits(rest):
            kept = rest
    return kept
