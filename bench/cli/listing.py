"""Answers of ``list``, as lines or as JSON: suites, precisions and techniques; with ``--gpus`` the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.devices.processes import GpuProcess, describe
from bench.planning import suite_registry
from bench.planning.abilities import is_emulated, unsupported_reason
from bench.results.records import Device, Seen
from bench.spec.precisions import PRECISIONS, emulation_of
from bench.spec.suite import Parameter, Suite
from bench.spec.techniques import TECHNIQUES
from bench.spec.trial import SuiteRef

GIB = 2**30


def describe_registries(pattern: str | None = None) -> list[str]:
    """Describe every suite, precision and technique, a few lines each; or name a library's models that match."""
    if pattern:
        return suite_registry.matching(pattern)
    lines = ["Suites (--suite NAME; change a parameter with --set NAME=VALUE):"]
    for ref, suite, parameters in _suites():
        settings = " ".join(f"{key}={value}" for key, value in parameters.items())
        whole = f" ({suite.full_epochs} in the recipe)" if suite.full_epochs not in (None, suite.epochs) else ""
        recipe = f"{suite.epochs} {'epoch' if suite.epochs == 1 else 'epochs'}{whole}; {suite.source}"
        lines += [f"  {ref.name:<18} {suite.title}", f"  {'':<18} {recipe}", f"  {'':<18} {settings}"]
    lines.append("Precisions (--precisions NAME,NAME:OPTION=VALUE; fp32 is the baseline of every speedup):")
    for precision in PRECISIONS.values():
        lines.append(f"  {precision.name:<18} {precision.summary}")
        if precision.options:
            lines.append(f"  {'':<18} {' '.join(precision.options)}")
    lines.append("Techniques (--techniques NAME,NAME=N; for all precisions alike):")
    lines += [f"  {technique.name:<18} {technique.summary}" for technique in TECHNIQUES.values()]
    return lines


def registries(pattern: str | None = None) -> dict[str, Any]:
    """Return the same as a JSON document."""
    from bench.report.document import head

    if pattern:
        return {**head("list"), "models": suite_registry.matching(pattern)}
    suites = [
        {"name": ref.name, "title": suite.title, "source": suite.source, "epochs": suite.epochs}
        | {"full_epochs": suite.full_epochs, "batch_sizes": list(suite.batch_sizes), "parameters": parameters}
        for ref, suite, parameters in _suites()
    ]
    precisions = [
        {"name": name, "summary": precision.summary, "options": list(precision.options)}
        for name, precision in PRECISIONS.items()
    ]
    techniques = [{"name": name, "summary": technique.summary} for name, technique in TECHNIQUES.items()]
    return {**head("list"), "suites": suites, "precisions": precisions, "techniques": techniques}


def _suites() -> Iterator[tuple[SuiteRef, Suite, dict[str, Parameter]]]:
    """Yield the suites that come with the project, each with its parameters."""
    for name in suite_registry.names():
        ref = SuiteRef(name=name)
        yield ref, suite_registry.load(ref), suite_registry.parameters(ref)


def devices(seen: Sequence[Seen], no_gpu: str, users: Mapping[str, list[GpuProcess]]) -> dict[str, Any]:
    """Return the devices as JSON, with the processes on each GPU by UUID; those of a missing GPU are unknown."""
    from bench.report.document import head

    documents = []
    for each in seen:
        facts = asdict(each.device)
        for name in ("unsupported", "lacking", "uuids", "names"):
            del facts[name]
        processes = users.get(each.device.uuid or "")
        documents.append(
            facts
            | {"memory_free_bytes": each.memory_free_bytes, "problem": each.problem or None}
            | {"precisions": {} if each.problem else {name: _would(each.device, name) for name in PRECISIONS}}
            | {"processes": None if processes is None else [asdict(process) for process in processes]}
        )
    return {**head("devices"), "no_gpu": no_gpu or None, "devices": documents}


def describe_devices(seen: Sequence[Seen], no_gpu: str, users: Mapping[str, list[GpuProcess]]) -> list[str]:
    """Describe devices, a few lines each; the arguments are those of ``devices``."""
    text = [f"No GPU to measure on: {no_gpu}."] if no_gpu else []
    for each in seen:
        device = each.device
        where = "CPU" if device.kind == "cpu" else f"GPU {device.placement}"
        text.append(f"{where}: {', '.join(_facts(each))}")
        lines = [device.uuid] if device.uuid else []
        lines += [each.problem] if each.problem else _precisions(device)
        if device.native_bf16 is not None:
            source = " (torch.cuda.is_bf16_supported(including_emulation=False) is False)" if device.is_gpu else ""
            lines.append("bfloat16 is native" if device.native_bf16 else f"bfloat16 is emulated{source}")
        lines += [_used(device, users)] if device.is_gpu else []
        text += [f"  {line}" for line in lines]
    return text


def _facts(seen: Seen) -> list[str]:
    device = seen.device
    capability = f"compute capability {device.compute_capability}" if device.compute_capability else ""
    memory = f"{device.memory_total_bytes / GIB:.1f} GiB" if device.memory_total_bytes is not None else ""
    free = f"{seen.memory_free_bytes / GIB:.1f} GiB free" if seen.memory_free_bytes is not None else ""
    power = f"power limit {device.power_limit_w:.0f} W" if device.power_limit_w is not None else ""
    if power and device.power_default_w not in (None, device.power_limit_w):
        power += f" (from the factory {device.power_default_w:.0f} W)"
    clocks = (device.sm_clock_limit_mhz, device.memory_clock_limit_mhz)
    clock = f"clocks up to {clocks[0]} MHz, memory {clocks[1]} MHz" if all(clocks) else ""
    threads = f"{device.cores} cores, {device.threads} threads" if device.kind == "cpu" else ""
    return [
        part for part in (device.name, device.architecture, capability, memory, free, power, clock, threads) if part
    ]


def _precisions(device: Device) -> list[str]:
    """Return what each precision would do, one line for equal ones."""
    alike: dict[str, list[str]] = {}
    for name in PRECISIONS:
        alike.setdefault(_would(device, name), []).append(name)
    return [f"{', '.join(names)}: {what}" for what, names in alike.items()]


def _would(device: Device, name: str) -> str:
    if reason := unsupported_reason(device, name):
        emulated = emulation_of(name)
        runs = PRECISIONS[name].narrow and not unsupported_reason(device, emulated)
        return f"unsupported: {reason}" + (f"; {emulated} does its arithmetic, without speed" if runs else "")
    if device.kind == "cpu" and is_emulated(device, name):
        return f"emulated: {device.bf16_gflops:.0f} GFLOP/s in bfloat16, {device.fp32_gflops:.0f} in fp32"
    if device.kind == "cpu" and PRECISIONS[name].compute == "float16":
        return "runs; not timed here, and most CPUs emulate float16"
    return "ok"


def _used(device: Device, users: Mapping[str, list[GpuProcess]]) -> str:
    if device.uuid is None or device.uuid not in users:
        return "who is using it cannot be told"
    return describe({device.uuid: users[device.uuid]}, {device.uuid: "it"}) or "nobody else is using it"
