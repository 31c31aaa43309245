"""Answers of ``list``, as lines or as JSON: suites, precisions and techniques; with ``--gpus`` the devices."""

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
HEADINGS = {
    "suites": "Suites (--suite NAME; change a parameter with --set NAME=VALUE):",
    "precisions": "Precisions (--precisions NAME,NAME:OPTION=VALUE; fp32 is the baseline of every speedup):",
    "techniques": "Techniques (--techniques NAME,NAME=N; for all precisions alike):",
}
# What lines say of a device, by its fields.
FACTS = {
    "compute_capability": "compute capability {}",
    "power_limit_w": "power limit {:.0f} W",
    "power_default_w": "from the factory {:.0f} W",
    "threads": "{} threads",
}


def registries() -> dict[str, list[dict[str, Any]]]:
    """Return every suite that comes with the project, every precision and every technique."""
    suites = []
    for name in suite_registry.names():
        ref = SuiteRef(name=name)
        about = _about(
            suite_registry.load(ref),
            "name",
            "title",
            "source",
            "epochs",
            "full_epochs",
            "batch_sizes",
        )
        suites.append(about | {"parameters": suite_registry.parameters(ref)})
    precisions = [_about(each, "name", "summary", "options") for each in PRECISIONS.values()]
    techniques = [_about(each, "name", "summary") for each in TECHNIQUES.values()]
    return {"suites": suites, "precisions": precisions, "techniques": techniques}


def _about(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def describe_registries() -> list[str]:
    """Return the same as lines, a few for each."""
    lines = []
    for kind, entries in registries().items():
        lines.append(HEADINGS[kind])
        for entry in entries:
            settings = [f"{key}={value}" for key, value in entry.get("parameters", {}).items()]
            more = [entry.get("source"), " ".join([*settings, *entry.get("options", ())])]
            lines.append(f"  {entry['name']:<18} {entry.get('title') or entry['summary']}")
            for text in filter(None, more):
                lines.append(f"  {'':<18} {text}")
    return lines


def devices(seen: Sequence[Seen], users: Mapping[str, list[GpuProcess]]) -> list[dict[str, Any]]:
    """Return the devices, with the processes on each GPU by UUID; those of a missing GPU are unknown."""
    documents = []
    for each in seen:
        facts = asdict(each.device)
        facts |= {"memory_free_bytes": each.memory_free_bytes, "problem": each.problem or None}
        facts |= {"precisions": {}, "processes": None}
        if not each.problem:
            facts["precisions"] = {name: _would(each.device, name) for name in PRECISIONS}
        uuid = each.device.uuid or ""
        if uuid in users:
            facts["processes"] = [asdict(process) for process in users[uuid]]
        documents.append(facts)
    return documents


def describe_devices(
    seen: Sequence[Seen], no_gpu: str, users: Mapping[str, list[GpuProcess]]
) -> list[str]:
    """Return the same as lines, a few for each device; and why there is no GPU."""
    text = [f"No GPU to measure on: {no_gpu}."] if no_gpu else []
    for each in seen:
        device, lines = each.device, []
        text.append(", ".join(_facts(each)))
        if device.uuid:
            lines.append(device.uuid)
        lines += [each.problem] if each.problem else _precisions(device)
        if device.native_bf16 is not None:
            lines.append(f"bfloat16 is {'native' if device.native_bf16 else 'emulated'}")
        if device.is_gpu:
            processes = users.get(device.uuid or "")
            who = "unknown"
            if processes is not None:
                who = ", ".join(str(process) for process in processes) or "nobody else"
            lines.append(f"used by: {who}")
        text += [f"  {line}" for line in lines]
    return text


def _facts(seen: Seen) -> list[str]:
    device = seen.device
    where = "CPU" if device.kind == "cpu" else f"GPU {device.placement}"
    facts = [f"{where}: {device.name}", device.architecture]
    for size, text in ((device.memory_total_bytes, "GiB"), (seen.memory_free_bytes, "GiB free")):
        if size is not None:
            facts.append(f"{size / GIB:.1f} {text}")
    for name, text in FACTS.items():
        value = getattr(device, name)
        if value is not None:
            facts.append(text.format(value))
    return facts


def _precisions(device: Device) -> list[str]:
    """Return what each precision would do, one line for equal ones."""
    alike: dict[str, list[str]] = {}
    for name in PRECISIONS:
        alike.setdefault(_would(device, name), []).append(name)
    return [f"{', '.join(names)}: {what}" for what, names in alike.items()]


def _would(device: Device, name: str) -> str:
    reason, compute = unsupported_reason(device, name), PRECISIONS[name].compute
    if reason:
        return f"unsupported: {reason}"
    if is_emulated(device, name):
        return (
            f"emulated: {device.bf16_gflops:.0f} GFLOP/s in bfloat16, {device.fp32_gflops:.0f} in "
            "fp32"
        )
    if device.kind == "cpu" and compute == "float16":
        return "runs; not timed here, and most CPUs emulate float16"
    return "ok"
