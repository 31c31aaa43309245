"""What a fake NVIDIA driver counts over time: energy, throttling, the work of processes."""

# ruff: noqa: N802 - its functions are called what NVML calls them.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.devices.fake_gpu import FakeGpu

SUCCESS, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 3, 6, 7
POWER_INSTANT = 186


def put(reference: Any, value: int) -> int:
    reference._obj.value = value
    return SUCCESS


class Counters:
    """The part of the C library that counts."""

    clock: Callable[[], float]

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu, energy: Any) -> int:
        return put(energy, gpu.energy_mj(self.clock()))

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, count: Any, values: Any) -> int:
        known = dict(gpu.fields)
        if gpu.has_power_instant:
            known[POWER_INSTANT] = gpu.power_mw(self.clock())
        for value in values._obj:
            value.nvmlReturn = SUCCESS if value.fieldId in known else gpu.field_code
            if value.fieldId == POWER_INSTANT:
                value.valueType, value.value.uiVal = 1, known.get(POWER_INSTANT, 0)
            else:
                value.valueType, value.value.ullVal = 3, known.get(value.fieldId, 0)
        return SUCCESS

    def nvmlDeviceGetViolationStatus(self, gpu: FakeGpu, policy: Any, violation: Any) -> int:
        if policy.value not in gpu.violations:
            return NOT_SUPPORTED
        violation._obj.violationTime = gpu.violations[policy.value]
        return SUCCESS

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, samples: Any, count: Any, since: Any) -> int:
        fresh = [work for work in gpu.work if work[0] > since.value or gpu.repeats_work]
        count._obj.value = len(fresh)
        if not fresh:
            return NOT_FOUND
        if samples is None:
            return INSUFFICIENT_SIZE
        for entry, (time_us, pid, sm_pct) in zip(samples, fresh, strict=True):
            entry.timeStamp, entry.pid, entry.smUtil = time_us, pid, sm_pct
        return SUCCESS
