"""What there is to run on, as CUDA and NVML see it; called in a process of its own, for it touches the GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import psutil
import torch

from bench.environment import architecture, describe_cpu, describe_gpu, kernels_problem, why_no_gpu
from bench.measure.nvml import Gpu, Nvml, NvmlFailure, open_nvml
from bench.records import Device, Seen


def look(_send: Callable[[object], None]) -> tuple[tuple[Seen, ...], str]:
    """Return the devices, the CPU last, and why CUDA has no GPU; that is empty where it has one."""
    count = torch.cuda.device_count()
    with open_nvml() or nullcontext() as nvml:
        visible = [_visible(index, nvml) for index in range(count)]
        hidden = list(_hidden(visible, nvml)) if nvml else []
    cpu = Seen(device=describe_cpu(), memory_free_bytes=psutil.virtual_memory().available)
    return (*visible, *hidden, cpu), "" if count else why_no_gpu()


def _visible(index: int, nvml: Nvml | None) -> Seen:
    device = describe_gpu(index, nvml)
    return Seen(device=device, memory_free_bytes=_free_bytes(device, nvml), problem=kernels_problem(index))


def _free_bytes(device: Device, nvml: Nvml | None) -> int | None:
    """Ask NVML, because asking CUDA would make a context, which takes memory itself."""
    try:
        return nvml.gpu(device.uuid).memory_free_bytes if nvml and device.uuid else None
    except NvmlFailure:
        return None


def _hidden(visible: list[Seen], nvml: Nvml) -> Iterator[Seen]:
    """Yield the boards that NVML knows and CUDA does not see."""
    uuids = {seen.device.uuid for seen in visible if seen.device.uuid}
    known = {uuid.removeprefix("GPU-") for uuid in uuids}
    sliced = {_board_index(uuid, nvml) for uuid in uuids}
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = f"CUDA_VISIBLE_DEVICES is '{chosen}'" if chosen is not None else "the driver may be too old for this torch"
    if torch.version.cuda is None:
        why = f"this torch ({torch.__version__}) is built without CUDA"
    for board in nvml.gpus():
        if board.uuid.removeprefix("GPU-") not in known and board.nvml_index not in sliced:
            yield Seen(
                device=_of_board(board),
                memory_free_bytes=board.memory_free_bytes,
                problem=f"CUDA does not see it: {why}.",
            )


def _board_index(uuid: str, nvml: Nvml) -> int | None:
    """Return NVML's index of the board that a GPU, or a slice of one, is on."""
    try:
        return nvml.gpu(uuid).nvml_index
    except NvmlFailure:
        return None


def _of_board(board: Gpu) -> Device:
    major, _, minor = (board.compute_capability or "").partition(".")
    return Device(
        placement="",
        kind="cuda",
        name=board.name or "unknown",
        architecture=architecture((int(major), int(minor))) if major.isdigit() else "",
        compute_capability=board.compute_capability,
        memory_total_bytes=board.memory_total_bytes,
        uuid=board.uuid,
        power_limit_w=board.power_limit_w,
        power_default_w=board.power_default_w,
        sm_clock_limit_mhz=board.sm_clock_limit_mhz,
        memory_clock_limit_mhz=board.memory_clock_limit_mhz,
    )
