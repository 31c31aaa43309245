"""Answers of ``list`` as lines or as JSON: the registries, or with ``--gpus`` the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.devices.processes import GpuProcess
from bench.planning import suite_registry
from bench.planning.abilities import is_emulated, unsupported_reason
from bench.results.records import Device, Seen
from bench.spec.precisions import PRECISIONS
from bench.spec.techniques import TECHNIQUES
from bench.spec.trial import SuiteRef

GIB = 2**30
SUITE = ("name", "title", "source", "epochs", "full_epochs", "batch_sizes", "cpu_parameters")
HEADINGS = {
    "suites": "Suites (--suite NAME; change a parameter with --set NAME=VALUE):",
    "precisions": (
        "Precisions (--precisions NAME,NAME:OPTION=VALUE; fp32 is the baseline of every speedup):"
    ),
    "techniques": "Techniques (--techniques NAME,NAME=N; for all precisions alike):",
}
# What lines say of a device, by its fields.
FACTS = {
    "compute_capability": "compute capability {}",
    "power_limit_w": "power limit {:.0f} W",
    "power_default_w": "from the factory {:.0f} W",
    "threads": "{} threads",
}


def registries() -> dict[str, Any]:
    """Return every suite that comes with the project, every precision and every technique."""
    suites = []
    for name in suite_registry.names():
        ref = SuiteRef(name=name)
        suite = _fields(suite_registry.load(ref), SUITE)
        suites.append(suite | {"parameters": suite_registry.parameters(ref)})
    precisions = [_fields(each, ("name", "summary", "options")) for each in PRECISIONS.values()]
    techniques = [_fields(each, ("name", "summary")) for each in TECHNIQUES.values()]
    return {
        "suites": suites,
        "precisions": precisions,
        "techniques": techniques,
    }


def _fields(record: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def describe_registries() -> list[str]:
    """Return the same as lines, a few for each."""
    lines = []
    for kind, entries in registries().items():
        lines.append(HEADINGS[kind])
        for entry in entries:
            title = entry.get("title") or entry["summary"]
            lines.append(f"  {entry['name']:<18} {title}")
            settings = []
            for key, value in entry.get("parameters", {}).items():
                settings.append(f"{key}={value}")
            settings += entry.get("options", ())
            on_cpu = []
            for key, value in entry.get("cpu_parameters", {}).items():
                on_cpu.append(f"{key}={value}")
            cpu = "on a CPU " + " ".join(on_cpu) if on_cpu else ""
            for more in (entry.get("source"), " ".join(settings), cpu):
                if more:
                    lines.append(f"  {'':<18} {more}")
    return lines


def devices(seen: Sequence[Seen], users: Mapping[str, list[GpuProcess]]) -> list[dict[str, Any]]:
    """Return the devices.

    Args:
        seen: what a survey saw.
        users: the processes on each GPU by UUID; those of a GPU without are unknown.
    """
    documents = []
    for each in seen:
        facts = asdict(each.device)
        facts["memory_free_bytes"] = each.memory_free_bytes
        facts["problem"] = each.problem or None
        facts["precisions"] = _precisions(each)
        facts["processes"] = None  # unknown, which is not the same as none
        processes = users.get(each.device.uuid or "")
        if processes is not None:
            facts["processes"] = [asdict(process) for process in processes]
        documents.append(facts)
    return documents


def _precisions(seen: Seen) -> dict[str, str]:
    """Return what each precision would do on a device; nothing where the device cannot be used."""
    if seen.problem:
        return {}
    return {name: _would(seen.device, name) for name in PRECISIONS}


def describe_devices(
    seen: Sequence[Seen],
    no_gpu: str,
    users: Mapping[str, list[GpuProcess]],
) -> list[str]:
    """Return the same as lines, a few for each device; and why there is no GPU."""
    text = []
    if no_gpu:
        text.append(f"No GPU to measure on: {no_gpu}.")
    for each in seen:
        device = each.device
        lines = []
        text.append(", ".join(_facts(each)))
        if device.uuid:
            lines.append(device.uuid)
        if each.problem:
            lines.append(each.problem)
        # Precisions with the same answer share a line; most devices can do most of them.
        alike: dict[str, list[str]] = {}
        for name, answer in _precisions(each).items():
            alike.setdefault(answer, []).append(name)
        for answer, names in alike.items():
            lines.append(f"{', '.join(names)}: {answer}")
        if device.native_bf16 is not None:
            how = "native" if device.native_bf16 else "emulated"
            lines.append(f"bfloat16 is {how}")
        if device.is_gpu:
            processes = users.get(device.uuid or "")
            lines.append(f"used by: {_users(processes)}")
        text += [f"  {line}" for line in lines]
    return text


def _users(processes: Sequence[GpuProcess] | None) -> str:
    if processes is None:
        return "unknown"
    return ", ".join(map(str, processes)) or "nobody else"


def _facts(seen: Seen) -> list[str]:
    device = seen.device
    where = f"GPU {device.placement}" if device.is_gpu else "CPU"
    facts = [f"{where}: {device.name}", device.architecture]
    if device.memory_total_bytes is not None:
        total_gib = device.memory_total_bytes / GIB
        facts.append(f"{total_gib:.1f} GiB")
    if seen.memory_free_bytes is not None:
        free_gib = seen.memory_free_bytes / GIB
        facts.append(f"{free_gib:.1f} GiB free")
    for name, text in FACTS.items():
        value = getattr(device, name)
        if value is not None:
            facts.append(text.format(value))
    return facts


def _would(device: Device, name: str) -> str:
    """Return what a precision would do on a device."""
    reason = unsupported_reason(device, name)
    if reason:
        return f"unsupported: {reason}"
    if is_emulated(device, name):
        bf16 = device.bf16_gflops
        fp32 = device.fp32_gflops
        return f"emulated: {bf16:.0f} GFLOP/s in bfloat16, {fp32:.0f} in fp32"
    # A survey measures the rates of fp32 and bfloat16 alone.
    if not device.is_gpu and PRECISIONS[name].compute == "float16":
        return "runs; not timed here, and most CPUs emulate float16"
    return "ok"
