"""What NVML counts over time: how long the clocks were held down, and which processes computed.

Both are asked for what has come since the last time. As in ``bench.measure.nvml``, an empty answer or None is
"not told here", and ``NvmlFailure`` means that the GPU is gone.
"""

from __future__ import annotations

from bench.measure.nvml import Nvml

THROTTLE_COUNTERS = {
    "NVML_FI_DEV_PERF_POLICY_POWER": "sw_power_cap",
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake",
}
"""Field of nvml.h to the clock event reason (``bench.measure.nvml.REASONS``) whose time it counts, in nanoseconds."""
VIOLATIONS = {"NVML_PERF_POLICY_POWER": "sw_power_cap", "NVML_PERF_POLICY_THERMAL": "sw_thermal"}
"""The same of nvmlDeviceGetViolationStatus, asked where no field tells."""
LAG_S = 2.0
"""More than the driver's counters may lag: they move in steps, of about 100 ms."""


class ThrottleTimes:
    """How long each reason held the clocks down between two calls. What answers is found out once."""

    def __init__(self, nvml: Nvml, uuid: str) -> None:
        """Take the first reading; a MIG slice has its board's."""
        self._nvml, self._uuid = nvml, uuid
        self._fields, self._violations = tuple(THROTTLE_COUNTERS), tuple(VIOLATIONS)
        self._last = self._read()
        self._fields = tuple(name for name in THROTTLE_COUNTERS if name in self._last)
        told = {THROTTLE_COUNTERS[name] for name in self._fields}
        self._violations = tuple(
            name for name, reason in VIOLATIONS.items() if name in self._last and reason not in told
        )

    @property
    def told(self) -> frozenset[str]:
        """The reasons whose time is counted here."""
        counters = {**THROTTLE_COUNTERS, **VIOLATIONS}
        return frozenset(counters[name] for name in (*self._fields, *self._violations))

    def since(self, elapsed_s: float) -> dict[str, float]:
        """Return the seconds since the last call by reason; a reason that did not hold is left out.

        Args:
            elapsed_s: time since the last call. A counter that grew by more is none of time: the numbers of some fields
                are not the same in every driver, so another quantity may answer. It is not asked again.
        """
        now, most_ns = self._read(), 1e9 * (elapsed_s + LAG_S)
        grown = {name: value - self._last.get(name, value) for name, value in now.items()}
        self._last |= now
        odd = {name for name, growth in grown.items() if growth > most_ns}
        self._fields = tuple(name for name in self._fields if name not in odd)
        self._violations = tuple(name for name in self._violations if name not in odd)
        held: dict[str, float] = {}
        for name, growth in grown.items():
            if growth > 0 and name not in odd:  # a counter that fell was reset
                reason = {**THROTTLE_COUNTERS, **VIOLATIONS}[name]
                held[reason] = max(held.get(reason, 0.0), growth / 1e9)
        return held

    def _read(self) -> dict[str, int]:
        calls = self._nvml.calls
        found: dict[str, int] = calls.fields(self._uuid, self._fields) if self._fields else {}
        for name in self._violations:
            board, policy = calls.target(self._uuid).board, getattr(calls.pynvml, name)
            violation = calls.call(self._uuid, "nvmlDeviceGetViolationStatus", board, policy)
            if violation is not None:
                found[name] = violation.violationTime
        return found


class ProcessLoads:
    """Which processes computed on a GPU between two calls."""

    def __init__(self, nvml: Nvml, uuid: str) -> None:
        """Pass over what was sampled before."""
        self._nvml, self._uuid, self._since_us = nvml, uuid, 0
        self.read()

    def read(self) -> dict[int, float] | None:
        """Return process id to the share of the time that its kernels ran, in percent, since the last call.

        Returns:
            The largest of the driver's samples, which cover 1/6 s to 1 s each. Processes without a kernel are left out.
            None where it is not told: on a MIG slice, on some cards, or without the permission.
        """
        # A slice's handle, so that NVML refuses, rather than the board's, whose processes compute elsewhere.
        handle = self._nvml.calls.target(self._uuid).handle
        samples = self._nvml.calls.listing(self._uuid, "nvmlDeviceGetProcessUtilization", handle, self._since_us)
        if samples is None:
            return None
        # The driver may leave entries of its buffer unwritten or stale.
        fresh = [one for one in samples if one.timeStamp > self._since_us and one.pid and one.smUtil <= 100]
        self._since_us = max((one.timeStamp for one in fresh), default=self._since_us)
        loads: dict[int, float] = {}
        for one in fresh:
            loads[one.pid] = max(loads.get(one.pid, 0.0), float(one.smUtil))
        return {pid: load for pid, load in loads.items() if load}
