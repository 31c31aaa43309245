"""From a request to a plan that this machine can run: suites, machine, data."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from bench.devices.processes import busy
from bench.launch.launcher import Launcher
from bench.planning import suite_registry
from bench.planning.defaults import PreparedData, choose_source
from bench.planning.max_batch import Largest
from bench.planning.plan import Plan, make_plan
from bench.planning.warnings import emulated, idle_techniques, mismatched, off_the_ladder, refused
from bench.results.records import Environment
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.precisions import BASELINE
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import techniques
from bench.spec.trial import SuiteRef


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """A plan, the machine it is for, and warnings for its reader."""

    request: Request
    suites: tuple[SuiteRef, ...]
    environment: Environment
    plan: Plan
    warnings: tuple[str, ...] = ()
    data: tuple[PreparedData, ...] = ()
    """Each source of the plan once."""
    replan: Callable[[Largest], Plan] | None = None
    """Makes the whole plan once the largest batches are known; None if the plan is whole."""


def prepare(request: Request, launcher: Launcher) -> PreparedRun:
    """Load the suites, describe the machine, prepare the data and make the plan.

    Raises:
        UsageError: this machine cannot do what was asked for; nothing but decoded images has been written.
    """
    suites = suite_registry.select(request)
    warnings = off_the_ladder(request)
    _require_lightning(suites)
    environment = launcher.survey(request.gpus)
    warnings += [f"{name} was set, which overrides TF32; unset for the run." for name in environment.removed_variables]
    warnings += mismatched(environment)
    warnings += busy(environment, request.exclusive)
    warnings += emulated(environment, request)
    for ref in suites:
        _fetch_weights(ref, launcher)
    by_data = {suite.data: suite for suite in suites.values()}
    prepared = {key: _prepare_data(suite, request, launcher) for key, suite in by_data.items()}
    data = {ref: prepared[suite.data] for ref, suite in suites.items()}
    named = {ref.name: ref for ref in suites}
    warnings += [
        f"{name} is not trained on images, so it uses synthetic data whatever --data says."
        for name, ref in named.items()
        if request.data and not suites[ref].data.is_image
    ]
    warnings += [
        f"{name} is trained on synthetic data, which have no test set, so nothing reaches --target-accuracy."
        for name, ref in named.items()
        if request.target_accuracy_pct and "train" in request.phases and data[ref].source.kind == "synthetic"
    ]
    flops = {ref: _count(ref, launcher) for ref in suites}

    def make(largest: Largest | None = None) -> Plan:
        plan = make_plan(request, suites, data, environment, flops, largest=largest)
        _check_batches(plan, suites, data)
        return plan

    plan = make()
    warnings += idle_techniques(request)
    warnings += refused(plan, environment)
    if not plan.trials:
        raise UsageError(f"There is nothing to measure: no device here can do --phases {','.join(request.phases)}.")
    if all(BASELINE not in trial.precisions for trial in plan.trials):
        warnings.append(f"{BASELINE} is not among the precisions, so there will be no speedups.")
    return PreparedRun(
        request=request,
        suites=tuple(suites),
        environment=environment,
        plan=plan,
        warnings=tuple(warnings),
        data=tuple({str(one.source): one for one in data.values()}.values()),
        replan=make if request.largest_batch else None,
    )


def _require_lightning(suites: dict[SuiteRef, Suite]) -> None:
    """Refuse suites that Lightning trains if it is not installed."""
    for ref, suite in suites.items():
        if suite.trainer == "lightning" and importlib.util.find_spec("lightning") is None:
            raise UsageError(
                f"{ref.name} is trained by Lightning, which is not installed: pip install 'ampmeter[lightning]', "
                "or --set trainer=plain."
            )


def _fetch_weights(ref: SuiteRef, launcher: Launcher) -> None:
    """Download or check a suite's initial weights before any trial runs."""
    weights = {**suite_registry.parameters(ref), **dict(ref.parameters)}.get("weights", "none")
    if weights != "none":
        print(f"Looking at the weights of {ref.name}: {weights}.", flush=True)
        launcher.call("bench.training.pretrained:fetch", ref)


def _prepare_data(suite: Suite, request: Request, launcher: Launcher) -> PreparedData:
    """Download or decode a suite's images before any trial runs, if trials train on them."""
    source = choose_source(suite, request)
    trained = any(PHASES[phase].trains_on_data for phase in request.phases)
    if source.kind == "synthetic" or (source.kind == "cifar10" and not trained):
        return PreparedData(source=source)
    print(f"Looking at the images of {source}.", flush=True)
    prepared = launcher.call("bench.worker.worker:prepare_data", suite.data, source)
    return PreparedData(
        source=source,
        classes=prepared.data.classes,
        train_samples=prepared.train_samples,
        fingerprint=prepared.fingerprint,
    )


def _count(ref: SuiteRef, launcher: Launcher) -> float | None:
    """Return a suite's FLOPs per sample; None if the model fails, which its trials then report."""
    try:
        flops: dict[str, float | None] = launcher.call("bench.training.flops:count_all", (ref,))
    except UsageError:
        return None
    return flops[ref.name]


def _check_batches(plan: Plan, suites: dict[SuiteRef, Suite], data: dict[SuiteRef, PreparedData]) -> None:
    """Refuse batches larger than the data, or that cannot be divided among devices and accumulated parts."""
    for trial in plan.trials:
        suite, placement = suites[trial.cell.suite], trial.cell.placement
        size, samples = trial.cell.batch_size, data[trial.cell.suite].train_samples
        if trial.phase in ("train", "ladder") and samples is not None and size > samples:
            raise UsageError(
                f"The batch size {size} is larger than the {samples} training images of {trial.cell.data}. "
                "Name smaller --batch-sizes."
            )
        many = len(placement.members)
        if many > 1 and suite.trainer == "lightning":
            raise UsageError(
                "Lightning's Trainer starts its own processes, on this machine: name one device, not "
                f"{placement.name}, and --set devices={many // placement.nodes}."
            )
        if trial.phase == "fit":
            continue  # the search tries only multiples
        devices = max(suite.devices, many)
        if size % devices:
            raise UsageError(
                f"The batch size {size} cannot be divided among {devices} devices. "
                f"Name --batch-sizes that are multiples of {devices}."
            )
        chosen = [trial.cell.techniques, *(arm.techniques for arm in trial.arms)]
        parts = max(techniques(names).grad_accumulation for names in chosen)
        if size // devices % parts:
            raise UsageError(
                f"The batch size {size} cannot be divided into {parts} equal parts for "
                f"grad-accumulation. Name --batch-sizes that are multiples of {devices * parts}."
            )
