"""Runs of ablations, from blocks and step times that are known."""

from bench.phases.ladder.report import Ladder, ladders
from bench.phases.memory import MemoryPeak
from bench.report.reading.load import load
from bench.results.records import Operations, Status, TrialResult
from tests.report.builders import MIB, RunBuilder, block, timed

AMP, ZEROED_AMP = "amp-bf16", "amp-bf16+set-to-none"
STEPS_MS = {"fp32": 8.0, AMP: 4.0, ZEROED_AMP: 3.2}


def ablation_of(builder: RunBuilder) -> Ladder:
    (ladder,) = ladders(load([builder.folder]))
    return ladder


def peaks(builder: RunBuilder, mib: dict[str, float]) -> None:
    """Add the steady peaks of ablation steps."""
    field = "peak_resident_bytes" if builder.device.kind == "cpu" else "peak_allocated_bytes"
    for name, size in mib.items():
        peak = MemoryPeak(**{field: int(size * MIB)})
        builder.result("memory", name, batch=64, ablation=True, row=peak)


def together(
    builder: RunBuilder,
    speeds: dict[str, list[list[float]]],
    *,
    status: Status = "ok",
    operations: Operations | None = None,
) -> Ladder:
    """Ablation steps timed together: how fast each is, by process and round; fp32 takes 8 ms.

    ``status`` is that of the first process; ``operations`` are those of every step.
    """
    for replicate in range(len(speeds["fp32"])):
        trial = builder.trial("speed", list(speeds), 64, replicate=replicate, ablation=True)
        blocks, results = [], []
        for name, processes in speeds.items():
            ending = "ok" if replicate else status
            speed = timed(8.0, 64)
            results.append(TrialResult(arm=name, status=ending, operations=operations, row=speed))
            for number, faster in enumerate(processes[replicate]):
                blocks.append(block(trial.id, name, round=number, time_ms=8 / faster))
        builder.add(trial, *results, records=blocks)
    return ablation_of(builder)


def apart(builder: RunBuilder, steps_ms: dict[str, list[float]]) -> RunBuilder:
    """Ablation steps that do not fit together: all at once run out of memory, and then each is
    alone.
    """
    for replicate in range(max(map(len, steps_ms.values()))):
        joint = builder.trial("speed", list(steps_ms), 64, replicate=replicate, ablation=True)
        asked = {"batch": 64, "replicate": replicate, "ablation": True}
        builder.add(joint, *(TrialResult(arm=name, status="oom") for name in steps_ms))
        for name, values in steps_ms.items():
            if replicate < len(values):
                row = timed(values[replicate], 64, paired=False)
                builder.result("speed", name, **asked, row=row)
    return builder


def scattered(center: float, *noise: float) -> list[list[float]]:
    """Three processes of five rounds, all of a process off by the same."""
    return [[center * (1 + off)] * 5 for off in noise or (0.0, 0.0, 0.0)]


def whole(builder: RunBuilder) -> RunBuilder:
    """fp32, amp-bf16 and set-to-none timed together on a machine that slows down, and non-blocking
    unsupported.
    """
    peaks(builder, {"fp32": 100, AMP: 60, ZEROED_AMP: 50})
    speeds = {}
    for name, step_ms in STEPS_MS.items():
        rounds = [8 / step_ms / slower for slower in (0.8, 0.9, 1.0, 1.1, 1.2)]
        speeds[name] = [rounds] * 3
    together(builder, speeds)
    name = "amp-bf16+set-to-none+non-blocking"
    return builder.lost("speed", name, "unsupported", "no GPU", batch=64, ablation=True)
