"""Runs of ablations, from blocks and step times that are known."""

from bench.phases.ladder.report import Ladder, ladders
from bench.phases.memory import MemoryPeak
from bench.report.reading.load import load
from bench.results.records import Operations, Status, TrialResult
from tests.report.builders import MIB, RunBuilder, block, timed

AMP = "amp-bf16"
ZEROED_AMP = "amp-bf16+set-to-none"


def ablation_of(builder: RunBuilder) -> Ladder:
    (ladder,) = ladders(load([builder.folder]))
    return ladder


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
        ending = "ok" if replicate else status
        speed = timed(8.0, 64)
        blocks = []
        results = []
        for name, processes in speeds.items():
            result = TrialResult(arm=name, status=ending, operations=operations, row=speed)
            results.append(result)
            for number, faster in enumerate(processes[replicate]):
                blocks.append(block(trial.id, name, round=number, time_ms=8 / faster))
        builder.add(trial, *results, records=blocks)
    return ablation_of(builder)


def apart(builder: RunBuilder, steps_ms: dict[str, list[float]]) -> RunBuilder:
    """Ablation steps that do not fit together: all at once run out of memory, and then each is
    alone.
    """
    lost = [TrialResult(arm=name, status="oom") for name in steps_ms]
    for replicate, values in enumerate(zip(*steps_ms.values(), strict=True)):
        asked = {"batch": 64, "replicate": replicate, "ablation": True}
        joint = builder.trial("speed", list(steps_ms), **asked)
        builder.add(joint, *lost)
        for name, step_ms in zip(steps_ms, values, strict=True):
            row = timed(step_ms, 64, paired=False)
            builder.result("speed", name, **asked, row=row)
    return builder


def scattered(center: float, *noise: float) -> list[list[float]]:
    """Three processes of five rounds, all of a process off by the same."""
    processes = []
    for off in noise or (0.0, 0.0, 0.0):
        rounds = [center * (1 + off)] * 5
        processes.append(rounds)
    return processes


def whole(builder: RunBuilder) -> RunBuilder:
    """fp32, amp-bf16 and set-to-none timed together on a machine that slows down, and non-blocking
    unsupported.
    """
    speeds = {}
    for name, gain, mib in (
        ("fp32", 1.0, 100),
        (AMP, 2.0, 60),
        (ZEROED_AMP, 2.5, 50),
    ):
        peak = MemoryPeak(peak_allocated_bytes=mib * MIB)
        builder.result("memory", name, batch=64, ablation=True, row=peak)
        rounds = [gain / slower for slower in (0.8, 0.9, 1.0, 1.1, 1.2)]
        speeds[name] = [rounds] * 3
    together(builder, speeds)
    above = f"{ZEROED_AMP}+non-blocking"
    return builder.lost("speed", above, "unsupported", "no GPU", batch=64, ablation=True)
