"""Which modules of a model a narrow precision harms: gradients with any set of modules in fp32, and the search.

``Narrowing`` runs a forward and backward pass in which the own operations of each module have a state: kept in fp32, or
narrow as the precision computes them. ``search`` finds a smallest set of modules to keep. docs/which-layers.md has the
definitions. Halving a list whose parts may be narrow as a whole is group testing (Dorfman, 1943); a set from which no
module can be dropped is 1-minimal (Zeller and Hildebrandt, 2002).
"""

from __future__ import annotations

import copy
import functools
import math
import re
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from bench.devices.backend import is_out_of_memory
from bench.measure.gradients import cast, named_gradients, stop_dropping
from bench.training.keep import lies_in

ENOUGH = {torch.bfloat16: 1 / 8, torch.float16: 1 / 20}
"""Errors of gradients that are no harm, by the narrow type."""
MOST = 0.5
"""An error that is harm whatever the modules add up to."""
OUTLIER = 10
"""A module whose error is above so many medians is none of those whose sum is the floor."""
FEW = 3
"""So many modules are a small set even where they are most of the model's."""
EXACT = 0.01
"""A parameter whose fp32 gradient is farther from float64's holds rounding alone, as a bias before batch norm does."""
FIRST_SCALE, SCALE_STEP = 2.0**16, 16.0
"""A loss scale begins at GradScaler's and falls by this factor while gradients overflow."""
VIEWS = re.compile(
    "view|t|transpose|expand|permute|_unsafe_view|unsqueeze|slice|select|split|detach|alias|unbind|squeeze|reshape|"
    "_reshape_alias|_to_copy|clone|empty|zeros|ones|full|lift_fresh"
)
"""Operators that compute nothing."""

Gradients = dict[str, Tensor]
"""By parameter, in the model's order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a precision narrows a step."""

    dtype: torch.dtype
    weights: bool
    """Whether the weights are narrow; else autocast narrows operations."""
    scaled: bool
    """Whether the loss is scaled, by a scale that falls until gradients are finite."""
    wide_types: tuple[type[nn.Module], ...] = ()
    """Modules that the precision itself leaves in fp32."""


class _OwnOperations(TorchDispatchMode):
    """Counts operations and FLOPs for the module whose forward called them, its children's left out."""

    def __init__(self, stack: Sequence[tuple[str, bool]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stack, self.operations, self.flops = stack, Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        floating = any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in tree_leaves(output))
        if self._stack and floating and not VIEWS.fullmatch(func.overloadpacket.__name__):
            name, _ = self._stack[-1]
            self.operations[name] += 1
            if count := flop_registry.get(func.overloadpacket):
                self.flops[name] += count(*args, **(kwargs or {}), out_val=output)
        return output


class Narrowing:
    """A model whose modules can each be kept in fp32 while the others are narrow.

    A kept module gets floating inputs in fp32 and runs with autocast off; what a module returns to a kept parent is
    widened. A module inside a kept one has a state of its own. With ``replay`` a narrow module gets its inputs in the
    types of the run in which all are narrow, although their producers are in fp32 now: else types would flow from the
    producers, and a module that is narrow alone would seem to do no harm.
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batches: Sequence[Any], recipe: Recipe
    ) -> None:
        """Copy ``model``, in fp32, with dropout off, and take the reference gradients of each batch.

        The ``loss`` of (model, batch) is computed inside the precision's autocast region.
        """
        self.model, self._loss, self.batches, self.recipe = copy.deepcopy(model), loss, batches, recipe
        stop_dropping(self.model)
        exact = [self._exact_gradients(batch) for batch in batches]
        self._device = next(model.parameters()).device.type
        self._names = {module: name for name, module in self.model.named_modules()}
        self._parameters = dict(self.model.named_parameters())
        tensors = (*self._parameters.values(), *self.model.buffers())
        self._exact = {tensor: tensor.detach().clone() for tensor in tensors}
        self._stack: list[tuple[str, bool]] = []
        self._calls, self._types = Counter[str](), dict[tuple[str, int], list[torch.dtype | None]]()
        self._kept, self._active, self._replay, self._record = set[str](), set(self._names.values()), False, False
        self.evaluations = 0
        for module, name in self._names.items():
            module.forward = self._stateful(name, module.forward)
        counter = _OwnOperations(self._stack)
        self._kept = set(self._active)
        with counter, torch.no_grad():
            loss(self.model, batches[0])
        self._restore()
        exempt = {name for module, name in self._names.items() if isinstance(module, recipe.wide_types)}
        self.candidates = [name for name in self._names.values() if counter.operations[name] and name not in exempt]
        """Modules with operations of their own, by name; the model itself has the empty name."""
        self._active = set(self.candidates)
        self.flops = {name: counter.flops[name] for name in self.candidates}
        self._owners = self._owned()
        self._tied = [owners for owners in self._owners.values() if len(owners) > 1] if recipe.weights else []
        self.references = [self.gradients(None, number)[1] for number in range(len(batches))]
        self._signal = [
            [name for name, true in each.items() if _norm(true) and _norm(ours[name] - true) <= EXACT * _norm(true)]
            for each, ours in zip(exact, self.references, strict=True)
        ]
        self._record = True
        self.gradients(())
        self._record = False

    def _exact_gradients(self, batch: Any) -> Gradients:
        """Return float64's; of a model that cannot run in it, fp32's with weights that differ by a rounding."""
        model = copy.deepcopy(self.model).double()
        torch.manual_seed(0)
        try:
            self._loss(model, cast(batch, torch.float64)).backward()
        except RuntimeError as error:  # it casts to float32 itself, in which rounding shows by what another one changes
            if is_out_of_memory(error):
                raise
            model = copy.deepcopy(self.model)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1 + torch.finfo(weight.dtype).eps * torch.randn_like(weight))
            torch.manual_seed(0)  # for a model that draws numbers itself
            self._loss(model, batch).backward()
        return dict(named_gradients(model, model.parameters()))

    def _owned(self) -> dict[nn.Parameter, set[str]]:
        """Return the active modules that use each parameter: its owners, or those that hold them and call them not."""
        owners: dict[nn.Parameter, set[str]] = {}
        for module, name in self._names.items():
            if isinstance(module, self.recipe.wide_types):
                continue
            user = name
            while user not in self._active and user:
                user = user.rpartition(".")[0]
            for weight in module.parameters(recurse=False):
                owners.setdefault(weight, set()).add(user)
        return owners

    def _stateful(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*inputs: Any, **named: Any) -> Any:
            if name not in self._active:
                output = forward(*inputs, **named)
                return output if name or not self.recipe.weights else cast(output, torch.float32)
            kept, parent_kept = name in self._kept, bool(self._stack) and self._stack[-1][1]
            call = (name, self._calls[name])
            self._calls[name] += 1
            if self._record:
                self._types[call] = [
                    leaf.dtype if isinstance(leaf, Tensor) else None for leaf in tree_leaves((inputs, named))
                ]
            if kept:
                inputs, named = cast((inputs, named), torch.float32)
            elif self.recipe.weights:
                inputs, named = cast((inputs, named), self.recipe.dtype)
            elif self._replay and call in self._types:
                types = iter(self._types[call])
                inputs, named = tree_map(
                    lambda leaf: leaf.to(self.recipe.dtype) if next(types) == self.recipe.dtype else leaf,
                    (inputs, named),
                )
            self._stack.append((name, kept))
            try:
                with self._region(enabled=not kept):
                    output = forward(*inputs, **named)
            finally:
                self._stack.pop()
            return cast(output, torch.float32) if parent_kept or (self.recipe.weights and not name) else output

        return run

    def _region(self, *, enabled: bool) -> AbstractContextManager[None]:
        if self.recipe.weights:
            return nullcontext()
        return torch.autocast(self._device, dtype=self.recipe.dtype, enabled=enabled, cache_enabled=False)

    def _restore(self) -> None:
        for tensor, exact in self._exact.items():
            tensor.grad = None
            if self.recipe.weights or not isinstance(tensor, nn.Parameter):
                tensor.data = exact.clone()

    def gradients(
        self, kept: Collection[str] | None, batch: int = 0, *, replay: bool = False, scaled: bool | None = None
    ) -> tuple[bool, Gradients]:
        """Run a step with some modules in fp32; return whether all is finite, and the gradients in fp32.

        Args:
            kept: names of the candidates that are in fp32; None is fp32 itself, the loss included.
            batch: its number.
            replay: whether narrow modules get their inputs in the types of the run in which all are narrow.
            scaled: whether the loss is scaled; None is the precision's way.
        """
        self._kept, self._replay = set(self.candidates if kept is None else kept), replay
        scale = FIRST_SCALE if (self.recipe.scaled if scaled is None else scaled) else 1.0
        while True:
            self.evaluations += 1
            self._restore()
            self._narrow_weights()
            self._calls.clear()
            torch.manual_seed(0)
            with self._region(enabled=kept is not None):
                loss = self._loss(self.model, self.batches[batch])
            (loss * scale).backward()
            named = named_gradients(self.model, self._parameters.values())
            gradients = {name: gradient.float() / scale for name, gradient in named}
            finite = bool(
                torch.stack([loss.isfinite().all(), *(each.isfinite().all() for each in gradients.values())]).all()
            )
            if finite or scale == 1.0 or not math.isfinite(float(loss.detach())):
                self._restore()
                return finite, gradients
            scale /= SCALE_STEP

    def _narrow_weights(self) -> None:
        """Give the weights of narrow modules the narrow type."""
        if not self.recipe.weights:
            return
        for weight, owners in self._owners.items():
            if not owners & self._kept and owners & self._active:
                weight.data = weight.data.to(self.recipe.dtype)
        for module, name in self._names.items():
            for buffer in module.buffers(recurse=False):
                if buffer.is_floating_point() and name in self._active and name not in self._kept:
                    buffer.data = buffer.data.to(self.recipe.dtype)

    def relative(self, gradients: Gradients, batch: int = 0) -> dict[str, float]:
        """Return each parameter's relative error against fp32, of those whose fp32 gradient is more than rounding."""
        reference = self.references[batch]
        return {name: _norm(gradients[name] - reference[name]) / _norm(reference[name]) for name in self._signal[batch]}

    def error(
        self, kept: Collection[str], batch: int = 0, *, replay: bool = False, scaled: bool | None = None
    ) -> float:
        """Return the error of the gradients with some modules kept: 0 is fp32's own, infinite is not finite."""
        finite, gradients = self.gradients(kept, batch, replay=replay, scaled=scaled)
        return self.score(gradients, batch) if finite else math.inf

    def agreed(self, kept: Collection[str], *, replay: bool = False) -> float:
        """Return the error that all batches show at least; infinite where it is on any of them.

        A unit near zero that changes its sign is a large error on a single batch, and no harm.
        """
        errors = [self.error(kept, number, replay=replay) for number in range(len(self.batches))]
        return max(errors) if math.inf in errors else min(errors)

    def score(self, gradients: Gradients, batch: int = 0) -> float:
        """Return the larger of the error of all gradients as one vector and the mean over parameters.

        The vector sees the sums of large gradients, and the mean those that are small throughout.
        """
        reference = self.references[batch]
        difference = sum(_norm(gradients[name] - value) ** 2 for name, value in reference.items())
        whole = math.sqrt(difference / sum(_norm(value) ** 2 for value in reference.values()))
        each = self.relative(gradients, batch).values()
        return max(whole, math.sqrt(sum(min(value, 1.0) ** 2 for value in each) / max(1, len(each))))

    def noise(self) -> float:
        """Return the sampling noise of the gradient: the relative difference between two batches, over √2."""
        first, second = self.references[:2]
        difference = sum(_norm(first[name] - second[name]) ** 2 for name in first if name in second)
        return math.sqrt(difference / 2 / sum(_norm(value) ** 2 for value in first.values()))

    def sharing(self, name: str) -> set[str]:
        """Return a module with those that share a narrow weight with it."""
        return {name}.union(*(owners for owners in self._tied if name in owners))

    def within(self, names: Iterable[str]) -> set[str]:
        """Return the candidates that are kept where modules of these names are, with all that they hold.

        Narrow weights have one type, so those that share one are kept together.
        """
        names = set(names)
        kept = {each for each in self.candidates if any(each == name or lies_in(each, name) for name in names)}
        return kept.union(*(owners for owners in self._tied if owners & kept))


Answer = Literal["fine", "concentrated", "diffuse", "everything", "loss"]


@dataclass(kw_only=True, slots=True)
class Findings:
    """The answer of a search."""

    answer: Answer
    """Fine: nothing is needed. Concentrated: a few modules. Diffuse: no small set. Everything: the loss needs scaling.
    Loss: what is computed outside of the modules, with all of them in fp32."""
    error: float
    """Of the gradients with nothing kept."""
    limit: float
    errors: dict[str, float] = field(default_factory=dict)
    """Of the gradients with one module narrow alone."""
    worst: dict[str, float] = field(default_factory=dict)
    """The largest error of a single parameter's gradient with that module narrow alone."""
    kept: tuple[str, ...] = ()
    """The modules to keep, without those that lie in others."""
    error_kept: float | None = None
    """Of the gradients with these kept."""


def floor_of(errors: Collection[float]) -> float:
    """Return the error that the modules without outliers add up to: what is left once the fragile ones are kept."""
    positive = [error for error in errors if 0 < error < math.inf]
    median = statistics.median_low(positive) if positive else 0.0
    return math.sqrt(sum(error**2 for error in positive if error <= OUTLIER * median))


def search(model: Narrowing, progress: Callable[[float], None] = lambda _share: None) -> Findings:
    """Find a smallest set of modules to keep so that the gradients' error is within the limit on every batch.

    It takes about as many passes as the model has modules, and 25 more.
    """
    enough = ENOUGH[model.recipe.dtype]
    expected, candidates = len(model.candidates) + 25, model.candidates

    def tell() -> None:
        progress(min(1.0, model.evaluations / expected))

    error = model.agreed(())
    tell()
    if error <= enough:
        return Findings(answer="fine", error=error, limit=enough)
    if (outside := model.agreed(candidates)) > enough:
        return Findings(answer="loss", error=error, limit=enough, error_kept=outside)
    errors, worst = dict[str, float](), dict[str, float]()
    for name in candidates:
        alone = model.sharing(name)
        finite, gradients = model.gradients([other for other in candidates if other not in alone], replay=True)
        errors[name] = model.score(gradients) if finite else math.inf
        worst[name] = max(model.relative(gradients).values(), default=0.0) if finite else math.inf
        tell()
    limit = min(MOST, max(enough, 2 * floor_of(errors.values())))
    findings = Findings(answer="diffuse", error=error, limit=limit, errors=errors, worst=worst)
    if error <= limit:
        return findings

    ranked = sorted(candidates, key=lambda name: -errors[name])

    @functools.cache
    def fits(kept: frozenset[str]) -> bool:
        tell()
        return model.agreed(model.within(kept)) <= limit

    kept = model.within(_pruned(_shortest(ranked, fits), fits, errors))
    findings.kept = tuple(name for name in candidates if name in kept and not any(lies_in(name, each) for each in kept))
    findings.error_kept = model.agreed(kept)
    most = 2 * len(kept) > len(candidates)
    unscaled = model.recipe.dtype is torch.float16 and not model.recipe.scaled
    if (most or findings.error_kept > limit) and unscaled and model.error((), scaled=True) <= limit:
        findings.answer = "everything"
    elif findings.error_kept <= limit and not (most and len(findings.kept) > FEW):
        findings.answer = "concentrated"
    return findings


def _shortest(ranked: list[str], fits: Callable[[frozenset[str]], bool]) -> frozenset[str]:
    """Return a shortest part of a list, from its start, that fits; its length doubles until it does."""
    high = 1
    while high < len(ranked) and not fits(frozenset(ranked[:high])):
        high *= 2
    lengths = range(high // 2 + 1, min(high, len(ranked)) + 1)
    return frozenset(ranked[: lengths[bisect_left(lengths[:-1], True, key=lambda n: fits(frozenset(ranked[:n])))]])


def _pruned(kept: frozenset[str], fits: Callable[[frozenset[str]], bool], errors: dict[str, float]) -> frozenset[str]:
    """Drop what is not needed, as it would be deployed: all within one module together, then one by one.

    Two branches whose errors cancel are worse without either alone, so whole parents come first. Of the rest, those
    with the smallest errors come first, so that few are left.
    """
    parents = {name.rsplit(".", depth)[0] for name in kept for depth in range(1, name.count(".") + 1)}
    groups = [{name for name in kept if name == parent or lies_in(name, parent)} for parent in sorted(parents, key=len)]
    groups += [{name} for name in sorted(kept, key=errors.__getitem__)]
    for group in groups:
        rest = kept - group
        if rest and rest != kept and fits(rest):
            kept = rest
    return kept


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))
