"""Everything that must be known, and be right, before anything runs: suites, machine, data, plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench import catalog, neighbours
from bench.cli import Command
from bench.launch.local import LocalLauncher
from bench.plan import Plan, PreparedData, Request, choose_source, make_plan
from bench.records import Environment
from bench.spec import BASELINE, Suite, UsageError
from bench.trial import DataSource, SuiteRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A plan, the machine it is for, and what its reader should be warned of."""

    request: Request
    environment: Environment
    plan: Plan
    warnings: tuple[str, ...] = ()


def gather(command: Command, launcher: LocalLauncher) -> Question:
    """Turn a command into a question that this machine can answer.

    Raises:
        UsageError: it cannot, and why; nothing has been written but decoded images into the data folder.
    """
    request = _request(command)
    suites = {ref.name: catalog.load(ref) for ref in request.suites}
    environment: Environment = launcher.call("bench.environment:survey", request.gpus)
    environment = replace(environment, removed_variables=launcher.removed_variables)
    warnings = [f"{name} was set, which overrides TF32; unset for the run." for name in launcher.removed_variables]
    warnings += _busy(environment, request.exclusive)
    data = {name: _prepare(suite, request, launcher) for name, suite in suites.items()}
    warnings += [
        f"{name} is not trained on images, so it uses synthetic data whatever --data says."
        for name, suite in suites.items()
        if request.data and not suite.data.is_image
    ]
    flops = {name: _count(ref, launcher) for name, ref in zip(suites, request.suites, strict=True)}
    plan = make_plan(request, suites, data, environment, flops)
    _require_full_batches(plan, data)
    if all(BASELINE not in trial.precisions for trial in plan.trials):
        warnings.append(f"{BASELINE} is not among the precisions, so there will be no speedups.")
    return Question(request=request, environment=environment, plan=plan, warnings=tuple(warnings))


def _request(command: Command) -> Request:
    refs = tuple(catalog.refer(word, dict(command.parameters)) for word in command.suites)
    _require_used(command, refs)
    if len({ref.name for ref in refs}) < len(refs):
        raise UsageError(f"Two of the suites have the same name: {', '.join(ref.name for ref in refs)}.")
    return Request(
        suites=refs,
        gpus=command.gpus,
        precisions=command.precisions,
        batch_sizes=command.batch_sizes,
        epochs=command.epochs,
        seeds=command.seeds,
        data=command.data,
        data_dir=command.data_dir,
        phases=command.phases,
        protocol=command.protocol,
        exclusive=command.exclusive,
    )


def _require_used(command: Command, refs: tuple[SuiteRef, ...]) -> None:
    """Refuse a --set that no suite has: a setting silently ignored would be a wrong result."""
    known = {name for ref in refs for name in catalog.parameters(ref)}
    for name, _ in command.parameters:
        if name not in known:
            raise UsageError(f"No suite here has a parameter '{name}'. Available: {', '.join(sorted(known))}.")


def _busy(environment: Environment, exclusive: bool) -> list[str]:
    """Return a warning if others use a GPU of ours, or refuse to start."""
    ours = {device.uuid for device in environment.devices if device.uuid}
    if not ours:
        return []
    known = neighbours.neighbours()
    found = {uuid: others for uuid, others in known.items() if uuid in ours and others}
    names = {device.uuid: f"GPU {device.placement}" for device in environment.devices if device.uuid}
    said = neighbours.describe(found, names)
    if said and exclusive:
        raise UsageError(f"{said} Wait, name other GPUs, or leave out --exclusive.")
    if exclusive and (unknown := ours - known.keys()):
        raise UsageError(
            f"Who is on {', '.join(names[uuid] for uuid in sorted(unknown))} cannot be told; leave out --exclusive."
        )
    return [said] if said else []


def _prepare(suite: Suite, request: Request, launcher: LocalLauncher) -> PreparedData:
    """Download or decode a suite's images now, if it will train on them, so that no trial has to."""
    source: DataSource = choose_source(suite, request)
    needed = source.kind == "folder" or (source.kind == "cifar10" and "train" in request.phases)
    if not needed:
        return PreparedData(source=source)
    print(f"Looking at the images of {source}.", flush=True)
    prepared = launcher.call("bench.worker:prepare_data", suite.data, source)
    return PreparedData(source=source, classes=prepared.data.classes, train_samples=prepared.train_samples)


def _count(ref: SuiteRef, launcher: LocalLauncher) -> float | None:
    """Count a suite's FLOPs; a model that does not survive that will be a failed row, with its reason."""
    try:
        found: dict[str, float | None] = launcher.call("bench.flops:count_all", (ref,))
    except UsageError:
        return None
    return found[ref.name]


def _require_full_batches(plan: Plan, data: dict[str, PreparedData]) -> None:
    for trial in plan.trials:
        samples = data[trial.cell.suite.name].train_samples
        if trial.phase == "train" and samples is not None and trial.cell.batch_size > samples:
            raise UsageError(
                f"The batch size {trial.cell.batch_size} is larger than the {samples} training images of "
                f"{trial.cell.data}. Name smaller --batch-sizes."
            )
