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
from bench.spec.suite import Data, Suite
from bench.spec.techniques import techniques
from bench.spec.trial import DataSource, SuiteRef, Trial


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
    data = _prepare_all(suites, request, launcher)
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
        plan = _without_repetition(make_plan(request, suites, data, environment, flops, largest=largest), suites)
        _require_full_batches(plan, data)
        _require_even_batches(plan, suites)
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
    """Refuse a suite that Lightning trains where it is not installed."""
    for ref, suite in suites.items():
        if suite.trainer == "lightning" and importlib.util.find_spec("lightning") is None:
            raise UsageError(
                f"{ref.name} is trained by Lightning, which is not installed: pip install 'ampmeter[lightning]', "
                "or --set trainer=plain."
            )


def _fetch_weights(ref: SuiteRef, launcher: Launcher) -> None:
    """Download or check a suite's initial weights now, so that no trial has to."""
    weights = {**suite_registry.parameters(ref), **dict(ref.parameters)}.get("weights", "none")
    if weights != "none":
        print(f"Looking at the weights of {ref.name}: {weights}.", flush=True)
        launcher.call("bench.training.pretrained:fetch", ref)


def _without_repetition(plan: Plan, suites: dict[SuiteRef, Suite]) -> Plan:
    """Leave out phases that would measure the same again: another trainer runs only the train phase."""
    kept = [
        (trial, seconds)
        for trial, seconds in zip(plan.trials, plan.seconds, strict=True)
        if trial.phase == "train" or suites[trial.cell.suite].trainer == "plain"
    ]
    return Plan(trials=tuple(trial for trial, _ in kept), seconds=tuple(seconds for _, seconds in kept))


def _prepare_all(suites: dict[SuiteRef, Suite], request: Request, launcher: Launcher) -> dict[SuiteRef, PreparedData]:
    """Prepare every suite's images, those of suites with the same data once."""
    made: dict[Data, PreparedData] = {}
    for suite in suites.values():
        if suite.data not in made:
            made[suite.data] = _prepare(suite, request, launcher)
    return {ref: made[suite.data] for ref, suite in suites.items()}


def _prepare(suite: Suite, request: Request, launcher: Launcher) -> PreparedData:
    """Download or decode a suite's images now, if it will train on them, so that no trial has to."""
    source: DataSource = choose_source(suite, request)
    trained = any(PHASES[phase].trains_on_data for phase in request.phases)
    needed = source.kind == "folder" or (source.kind == "cifar10" and trained)
    if not needed:
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
    """Count a suite's FLOPs; a model that does not survive that will be a failed row, with its reason."""
    try:
        found: dict[str, float | None] = launcher.call("bench.training.flops:count_all", (ref,))
    except UsageError:
        return None
    return found[ref.name]


def _require_full_batches(plan: Plan, data: dict[SuiteRef, PreparedData]) -> None:
    for trial in plan.trials:
        samples = data[trial.cell.suite].train_samples
        if trial.phase in ("train", "ladder") and samples is not None and trial.cell.batch_size > samples:
            raise UsageError(
                f"The batch size {trial.cell.batch_size} is larger than the {samples} training images of "
                f"{trial.cell.data}. Name smaller --batch-sizes."
            )


def _require_even_batches(plan: Plan, suites: dict[SuiteRef, Suite]) -> None:
    for trial in plan.trials:
        place = trial.cell.placement
        together = len(place.members)
        devices, parts = suites[trial.cell.suite].devices, _parts(trial)
        if together > 1 and suites[trial.cell.suite].trainer == "lightning":
            raise UsageError(
                f"Lightning's Trainer starts its own processes, on this machine: name one device, not {place.name}, "
                f"and --set devices={together // place.nodes}."
            )
        if trial.phase == "fit":
            continue  # the search tries none but multiples
        devices = max(devices, together)
        if trial.cell.batch_size % devices:
            raise UsageError(
                f"The batch size {trial.cell.batch_size} cannot be divided among {devices} devices. "
                f"Name --batch-sizes that are multiples of {devices}."
            )
        if trial.cell.batch_size // devices % parts:
            raise UsageError(
                f"The batch size {trial.cell.batch_size} cannot be divided into {parts} equal parts for "
                f"grad-accumulation. Name --batch-sizes that are multiples of {devices * parts}."
            )


def _parts(trial: Trial) -> int:
    """Return the parts that a batch is cut into, by the technique of the cell or of any rung."""
    chosen = [trial.cell.techniques, *(arm.techniques for arm in trial.arms)]
    return max(techniques(names).grad_accumulation for names in chosen)
