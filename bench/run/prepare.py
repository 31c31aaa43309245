"""From a request to a plan that this machine can run, with warnings before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.devices.processes import busy
from bench.launch import Launcher
from bench.planning import suite_registry
from bench.planning.abilities import EMULATED, is_emulated
from bench.planning.batch_sizes import Largest
from bench.planning.plan import Plan, make_plan
from bench.planning.prepared_suite import PreparedSuite
from bench.results.records import Device, Environment
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES, SEARCHES, SELECTABLE
from bench.spec.precisions import BASELINE
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import find
from bench.spec.text import print_plain
from bench.spec.trial import SuiteRef

# An estimate never takes so long: a model that hangs here hangs in its trials, whose rows say
# where.
ESTIMATE_S = 60.0
# Training images of the sources whose number is known without them: a plan needs no download for
# its estimates.
TRAIN_SAMPLES = {"cifar10": 50_000, "digits": 1_200}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """A plan, the machine it is for, and warnings for the user."""

    request: Request
    suites: tuple[SuiteRef, ...]
    environment: Environment
    plan: Plan
    warnings: tuple[str, ...] = ()
    data: tuple[PreparedData, ...] = ()
    """Each source of the plan once."""
    replan: Callable[[Largest], Plan] | None = None
    """Makes the complete plan once the largest batches are known; None if it is complete."""


def prepare(request: Request, launcher: Launcher) -> PreparedRun:
    """Load the suites, describe the machine, prepare the data and make the plan.

    Raises:
        UsageError: this machine cannot run the request; only downloads and decoded images have been
            written.
    """
    suites = suite_registry.select(request)
    check_phases(request)
    if request.start is not None and not request.start.is_file():
        raise UsageError(
            "--from takes a checkpoint, as in results/RUN/checkpoints/; there is no "
            f"'{request.start}'."
        )
    for suite in suites.values():
        check_data(suite, request)
    print_plain("Looking at the devices.")
    environment = launcher.survey(request.gpus)
    if request.quick and request.gpus is None and request.on is None:
        environment = one_of_each_model(environment)
    if not any(device.is_gpu for device in environment.devices):
        # Only now is it known that a CPU alone measures, which some suites are smaller for.
        suites = suite_registry.select(request, on_cpu=True)
    busy_gpus = busy(environment)  # before this run's own processes use them
    prepared = _prepare_suites(suites, request, launcher)

    def make(largest: Largest | None = None) -> Plan:
        plan = make_plan(request, prepared, environment, largest)
        check_batches(plan, prepared)
        return plan

    plan = make()
    if not plan.trials:
        phases = ",".join(request.phases)
        raise UsageError(f"There is nothing to measure: no device here can do --phases {phases}.")
    warnings = [
        *warn_of_environment(environment),
        *busy_gpus,
        *warn_of_data(request, prepared),
        *warn_of_emulation(environment, request, plan),
        *warn_of_what_does_nothing(environment, request, plan),
    ]
    sources = {str(suite.data.source): suite.data for suite in prepared}
    return PreparedRun(
        request=request,
        suites=tuple(suites),
        environment=environment,
        plan=plan,
        warnings=tuple(dict.fromkeys(warnings)),
        data=tuple(sources.values()),
        replan=make if request.largest_batch else None,
    )


def _prepare_suites(
    suites: Mapping[SuiteRef, Suite], request: Request, launcher: Launcher
) -> list[PreparedSuite]:
    """Fetch the weights and the data of suites, and estimate their models."""
    # Suites with the same needs share their data.
    data: dict[tuple[object, bool], PreparedData] = {}
    prepared = []
    for ref, suite in suites.items():
        _fetch_weights(ref, launcher)
        needs = suite.data, suite.batches is None
        if needs not in data:
            data[needs] = _prepare_data(suite, request, launcher)
        flops_per_sample = _estimate(launcher, "bench.training.estimates:count_flops", ref)
        footprint = None
        if suite.sized:
            footprint = _estimate(launcher, "bench.training.estimates:footprint", ref)
        prepared.append(
            PreparedSuite(
                ref=ref,
                suite=suite,
                data=data[needs],
                flops_per_sample=flops_per_sample,
                footprint=footprint,
            )
        )
    return prepared


def check_phases(request: Request) -> None:
    """Refuse what a phase cannot answer, before anything is fetched."""
    for name in request.phases:
        if name not in PHASES:
            raise UsageError(
                f"This ampmeter cannot measure {name}: bench/phases/ has no folder of that name."
            )
        PHASES[name].check(request)


def check_data(suite: Suite, request: Request) -> None:
    """Refuse a source of data that a suite cannot use, before anything takes time."""
    choose_source(suite, request)


def one_of_each_model(environment: Environment) -> Environment:
    """Return an environment with the first device of each model."""
    models: dict[str, Device] = {}
    for device in environment.devices:
        models.setdefault(device.name, device)
    return replace(environment, devices=(*models.values(),))


def _fetch_weights(ref: SuiteRef, launcher: Launcher) -> None:
    """Download or check a suite's initial weights before any trial runs."""
    defaults = suite_registry.parameters(ref)
    weights = dict(ref.parameters).get("weights") or defaults.get("weights")
    if weights not in (None, "none"):
        print_plain(f"Checking the weights of {ref.name}: {weights}.")
        launcher.call("bench.training.pretrained:fetch", ref)


def choose_source(suite: Suite, request: Request) -> DataSource:
    """Return where a suite's data come from: the request's source, if the suite can use it.

    Else the suite's own, and where that does not fit it either, synthetic ones.

    Raises:
        UsageError: tokens were asked for, and the suite has none.
    """
    data = suite.data
    if suite.batches is not None:
        return DataSource(kind="suite")

    def parse(word: str) -> DataSource:
        return DataSource.parse(word, request.data_dir, elsewhere=request.on is not None)

    source = parse(request.data or data.source)
    if data.tokens:
        is_usable = source.kind in ("markov", "synthetic", "text")
        return source if is_usable else parse(data.source)
    if source.kind == "text" or (source.kind == "markov" and data.is_image):
        needs = "images" if data.is_image else "vectors"
        raise UsageError(
            f"--data {source.kind} gives tokens, and {suite.name} is trained on {needs}."
        )
    return source if data.is_image else parse("synthetic")


def _prepare_data(suite: Suite, request: Request, launcher: Launcher) -> PreparedData:
    """Download or decode a suite's images, or look at its text, before any trial runs."""
    source = choose_source(suite, request)
    if source.generated:
        return PreparedData(source=source)
    if source.kind != "text":
        # What is not here is not fetched for a plan, nor are images on which no trial trains.
        trained = any(PHASES[phase].trains_on_data for phase in request.phases)
        if request.dry_run or (source.kind == "cifar10" and not trained):
            return PreparedData(source=source, train_samples=TRAIN_SAMPLES.get(source.kind))
        print_plain(f"Preparing the images of {source}.")
    prepared: PreparedData = launcher.call("bench.worker.worker:prepare_data", suite.data, source)
    return prepared


def _estimate(launcher: Launcher, target: str, ref: SuiteRef) -> Any:
    """Return an estimate of a model, from a process of its own.

    None if that fails, as the model's trials will then report.
    """
    try:
        return launcher.call(target, ref, silence_s=ESTIMATE_S)
    except UsageError:  # it hangs, died or raised an error
        return None


def check_batches(plan: Plan, suites: Sequence[PreparedSuite]) -> None:
    """Refuse batches that are larger than the data, or that cannot be divided into equal parts."""
    train_samples = {suite.ref: suite.data.train_samples for suite in suites}
    for trial in plan.trials:
        size = trial.cell.batch_size
        samples = train_samples[trial.cell.suite]
        if PHASES[trial.phase].trains_on_data and samples is not None and size > samples:
            raise UsageError(
                f"The batch size {size} is larger than the {samples} training images of "
                f"{trial.cell.data}. Name smaller --batch-sizes."
            )
        # In an ablation only some arms accumulate gradients, at the batch size of all.
        parts = max(trial.techniques_of(arm).grad_accumulation for arm in trial.arms)
        pieces = parts * len(trial.cell.placement.members)
        if trial.phase not in SEARCHES and size % pieces:  # a search tries only multiples
            raise UsageError(
                f"The batch size {size} cannot be divided into {pieces} equal parts, one for each "
                "device and each part of grad-accumulation. Name --batch-sizes that are multiples "
                f"of {pieces}."
            )


def warn_of_environment(environment: Environment) -> Iterator[str]:
    """Warn of variables that change what is measured, and of GPUs that are left out."""
    yield from environment.left_out
    for name in environment.removed_variables:
        yield f"{name} was set, and changes what fp32 computes; unset for the run."
    for text in environment.variables:
        if re.fullmatch("CUDA_LAUNCH_BLOCKING=0*[1-9].*", text):
            yield (
                f"{text} is set: the host waits for each kernel, so steps take longer than without "
                "it."
            )


def warn_of_data(request: Request, suites: Sequence[PreparedSuite]) -> Iterator[str]:
    """Warn of images that cannot be read, and of suites without use for ``--data``."""
    for suite in suites:
        source, left_out = suite.data.source, suite.data.left_out
        if left_out:
            yield (
                f"{source}: {len(left_out):,} unreadable images are left out, the first is "
                f"'{left_out[0]}'."
            )
        if request.data and request.data.partition(":")[0] != source.kind:
            yield f"{suite.ref.name} is trained on {source} data whatever --data says."


def warn_of_emulation(environment: Environment, request: Request, plan: Plan) -> Iterator[str]:
    """Warn of precisions that a CPU emulates, with what becomes of them."""
    measured: set[tuple[str, str]] = set()
    for trial in plan.trials:
        for name in trial.arm_names:
            measured.add((trial.cell.placement.name, name))
    for device in environment.devices:
        for name in request.precisions or (EMULATED,):
            if not is_emulated(device, name):
                continue
            fate = "shows nothing of the speed on other devices; of memory and accuracy it does"
            if (device.placement, name) not in measured:
                fate = f"is left out; --precisions {BASELINE},{name} measures it all the same"
            slower = (device.fp32_gflops or 0.0) / (device.bf16_gflops or 1.0)
            yield (
                f"bf16 is emulated on {device.name}: {slower:.0f} times slower than fp32. {name} "
                f"{fate}."
            )


def warn_of_what_does_nothing(
    environment: Environment, request: Request, plan: Plan
) -> Iterator[str]:
    """Warn of parts of a request that cannot show what they are asked for."""
    for name in request.phases:
        for device in environment.devices:
            phase = PHASES[name]
            warning = phase.missing(device)
            if warning and not phase.can_measure(device):
                yield warning
    idle = [name for name in request.techniques if find(name).input_pipeline]
    others = [phase for phase in SELECTABLE if phase in request.phases and phase != "train"]
    if idle and others:
        yield (
            f"No effect on {', '.join(others)}, which use batches that are on the device already: "
            f"{', '.join(idle)}."
        )
    for trial in plan.trials:
        if BASELINE in trial.arm_names or PHASES[trial.phase].has_own_baseline:
            return
    yield f"{BASELINE} is not among the precisions, so there will be no speedups."
