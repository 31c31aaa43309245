"""From a request to a plan that this machine can run, with warnings before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench.devices.processes import busy
from bench.launch import Launcher
from bench.planning import suite_registry
from bench.planning.abilities import EMULATED, is_emulated
from bench.planning.batch_sizes import Largest
from bench.planning.continuation import continued
from bench.planning.plan import Plan, make_plan
from bench.results.records import Environment
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES, SEARCHES, SELECTABLE
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import find, techniques
from bench.spec.text import print_plain
from bench.spec.trial import SuiteRef

TRAIN_SAMPLES = {"cifar10": 50_000, "digits": 1_200}
"""Training images of the sources whose number is known without them."""


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
    """Makes the complete plan once the largest batches are known; None if the plan is complete already."""


def prepare(request: Request, launcher: Launcher) -> PreparedRun:
    """Load the suites, describe the machine, prepare the data and make the plan.

    Raises:
        UsageError: this machine cannot run the request; only downloads and decoded images have been written.
    """
    suites = suite_registry.select(request)
    if gone := [name for name in request.phases if name not in PHASES]:
        raise UsageError(f"This ampmeter cannot measure {', '.join(gone)}: bench/phases/ has no folder of that name.")
    for name in request.phases:
        PHASES[name].check(request)  # before anything is fetched
    print_plain("Looking at the devices.")
    environment = launcher.survey(request.gpus)
    if request.quick and request.gpus is None and request.on is None:
        first = {device.name: device for device in reversed(environment.devices)}  # one GPU of each model
        environment = replace(environment, devices=tuple(reversed(first.values())))
    if not any(device.is_gpu for device in environment.devices):
        suites = suite_registry.select(request, on_cpu=True)
    warnings = warn_of_variables(environment) + warn_of_builds(environment) + busy(environment, request.exclusive)
    sized = [ref for ref, suite in suites.items() if suite.sized]
    footprints = {ref: _figure(launcher, "bench.training.estimates:footprint", ref) for ref in sized}
    for ref in suites:
        _fetch_weights(ref, launcher)
    by_data = {(suite.data, suite.batches is None): suite for suite in suites.values()}
    prepared = {key: _prepare_data(suite, request, launcher) for key, suite in by_data.items()}
    data = {ref: prepared[suite.data, suite.batches is None] for ref, suite in suites.items()}
    warnings += [_unread(source) for source in prepared.values() if source.left_out]
    warnings += warn_of_data(request, data)
    flops = {ref: _figure(launcher, "bench.training.estimates:count_flops", ref) for ref in suites}

    def make(largest: Largest | None = None) -> Plan:
        planned = make_plan(request, suites, data, environment, flops, largest=largest, footprints=footprints)
        plan = continued(planned, request)
        check_batches(plan, data)
        return plan

    plan = make()
    warnings += warn_of_emulation(environment, request, plan) + warn_of_idle_techniques(request)
    warnings += warn_of_shared_algorithms(plan)
    warnings += warn_of_what_devices_lack(environment, request)
    if not plan.trials:
        raise UsageError(f"There is nothing to measure: no device here can do --phases {','.join(request.phases)}.")
    own = {name for name, phase in PHASES.items() if phase.has_own_baseline}
    if not any(BASELINE in trial.precisions or trial.phase in own for trial in plan.trials):
        warnings.append(f"{BASELINE} is not among the precisions, so there will be no speedups.")
    return PreparedRun(
        request=request,
        suites=tuple(suites),
        environment=environment,
        plan=plan,
        warnings=tuple(warnings),
        data=tuple({str(source.source): source for source in data.values()}.values()),
        replan=make if request.largest_batch else None,
    )


def _fetch_weights(ref: SuiteRef, launcher: Launcher) -> None:
    """Download or check a suite's initial weights before any trial runs."""
    weights = {**suite_registry.parameters(ref), **dict(ref.parameters)}.get("weights", "none")
    if weights != "none":
        print_plain(f"Checking the weights of {ref.name}: {weights}.")
        launcher.call("bench.training.pretrained:fetch", ref)


def choose_source(suite: Suite, request: Request) -> DataSource:
    """Return where a suite's data come from: the request's source, if the suite can use it, else the suite's.

    Raises:
        UsageError: tokens were asked for, and the suite has none.
    """
    data, kind = suite.data, (request.data or "").partition(":")[0]
    if suite.batches is not None:
        return DataSource(kind="suite")
    named = request.data if data.is_image else "synthetic"
    if data.tokens:
        named = request.data if kind in ("markov", "synthetic", "text") else data.source
    elif kind == "text" or (data.is_image and kind == "markov"):
        what = "is the bytes of a text" if kind == "text" else "is a stream of tokens"
        raise UsageError(
            f"--data {kind} {what}, and {suite.name} is trained on {'images' if data.is_image else 'vectors'}."
        )
    return DataSource.parse(named or data.source, request.data_dir, elsewhere=request.on is not None)


def _prepare_data(suite: Suite, request: Request, launcher: Launcher) -> PreparedData:
    """Download or decode a suite's images, or look at its text, before any trial runs, if trials train on them."""
    source = choose_source(suite, request)
    trained = any(PHASES[phase].trains_on_data for phase in request.phases)
    if source.generated or (source.kind == "cifar10" and not trained):
        return PreparedData(source=source)
    if request.dry_run and source.kind != "text":  # what is not here is not fetched for a plan
        return PreparedData(source=source, train_samples=TRAIN_SAMPLES.get(source.kind))
    if source.kind != "text":
        print_plain(f"Preparing the images of {source}.")
    prepared: PreparedData = launcher.call("bench.worker.worker:prepare_data", suite.data, source)
    return prepared


def _unread(data: PreparedData) -> str:
    """Say how many images of a source cannot be read."""
    return f"{data.source}: {len(data.left_out):,} unreadable images are left out, the first is '{data.left_out[0]}'."


def _figure(launcher: Launcher, target: str, *arguments: object) -> Any:
    """Return a figure of a model, from a process of its own; None if that fails, as its trials will then report."""
    try:
        return launcher.call(target, *arguments)
    except UsageError:  # it hangs, died or raised an error
        return None


def check_batches(plan: Plan, data: dict[SuiteRef, PreparedData]) -> None:
    """Refuse batches that are larger than the data, or do not divide into equal parts by device and accumulation."""
    for trial in plan.trials:
        size, samples = trial.cell.batch_size, data[trial.cell.suite].train_samples
        devices = len(trial.cell.placement.members)
        if PHASES[trial.phase].trains_on_data and samples is not None and size > samples:
            raise UsageError(
                f"The batch size {size} is larger than the {samples} training images of {trial.cell.data}. "
                "Name smaller --batch-sizes."
            )
        if trial.phase in SEARCHES:
            continue  # the search tries only multiples
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


def warn_of_data(request: Request, data: dict[SuiteRef, PreparedData]) -> list[str]:
    """Warn of suites that do not use the source of ``--data``, and of sources that show no ``--target-accuracy``."""
    warnings: dict[str, None] = {}  # each once, also where a suite has several variants
    for ref, prepared in data.items():
        source = prepared.source
        if request.data and request.data.partition(":")[0] != source.kind:
            warnings[f"{ref.name} is trained on {source} data whatever --data says."] = None
        has_accuracy = source.kind == "suite" or not (source.generated or source.of_tokens)
        if request.target_accuracy_pct and "train" in request.phases and not has_accuracy:
            warnings[f"{ref.name} is trained on {source} data, which show no accuracy for --target-accuracy."] = None
    return list(warnings)


def warn_of_variables(environment: Environment) -> list[str]:
    """Warn of variables that were unset, of one that makes the host wait, and of GPUs that are left out."""
    warnings = [
        f"{name} was set, and changes what fp32 computes; unset for the run." for name in environment.removed_variables
    ]
    for text in environment.variables:
        if re.fullmatch("CUDA_LAUNCH_BLOCKING=0*[1-9].*", text):
            warnings.append(f"{text} is set: the host waits for each kernel, so steps take longer than without it.")
    return [*warnings, *environment.left_out]


def warn_of_builds(environment: Environment) -> list[str]:
    """Warn of nodes with different builds of torch, since results depend on the build."""
    nodes = environment.machines
    if len({node.torch for node in nodes}) < 2:
        return []
    texts = [f"{node.torch} on {node.host} ({node.devices[0].placement})" for node in nodes]
    builds = ", ".join(dict.fromkeys(texts))
    return [f"The nodes have different builds of torch: {builds}. Their figures differ for that reason, too."]


def warn_of_emulation(environment: Environment, request: Request, plan: Plan) -> list[str]:
    """Warn of precisions that a CPU emulates, with what becomes of them."""
    measured = {(trial.cell.placement.name, name) for trial in plan.trials for name in trial.precisions}
    warnings: dict[str, None] = {}  # each once, also where several devices are alike
    for device in environment.devices:
        for name in request.precisions or (EMULATED,):
            if not is_emulated(device, name) or parse_precision(name).emulated:
                continue
            if (device.placement, name) not in measured:
                fate = f"is left out; --precisions {BASELINE},{name} measures it all the same"
            elif request.precisions:
                fate = "shows nothing of the speed on other devices; of memory and accuracy it does"
            else:
                fate = f"is measured once; --precisions {BASELINE},{name} measures it in several processes"
            slower = (device.fp32_gflops or 0.0) / (device.bf16_gflops or 1.0)
            warnings[f"bf16 is emulated on {device.name}: {slower:.0f} times slower than fp32. {name} {fate}."] = None
    return list(warnings)


def warn_of_shared_algorithms(plan: Plan) -> list[str]:
    """Warn of ``default`` in one process with ``tf32``.

    torch keeps the algorithm of a convolution by its shapes, types and permission of TF32, not by whether cuDNN tried
    algorithms to choose it (``benchmark_cache`` in aten/src/ATen/native/cudnn/Conv_v8.cpp).
    """
    if not any({"default", "tf32"} <= {*trial.precisions} for trial in plan.trials):
        return []
    return [
        "default and tf32 are timed in one process, where torch uses for both the algorithms of convolutions that the "
        "first of them has chosen. Name them in two runs to see default as it is alone."
    ]


def warn_of_what_devices_lack(environment: Environment, request: Request) -> list[str]:
    """Warn of phases that are left out on a device that cannot be asked for them."""
    reasons = (PHASES[name].lacks(device) for name in request.phases for device in environment.devices)
    return list(filter(None, reasons))


def warn_of_idle_techniques(request: Request) -> list[str]:
    """Warn of techniques that have no effect in a selected phase."""
    idle = [name for name in request.techniques if find(name).input_pipeline]
    others = [phase for phase in SELECTABLE if phase in request.phases and phase != "train"]
    if not idle or not others:
        return []
    return [f"No effect on {', '.join(others)}, which use batches that are on the device already: {', '.join(idle)}."]
