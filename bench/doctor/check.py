"""A self-test's outcome, and the figures that workers send for it. Plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One row of the doctor's table."""

    name: str
    expected: str
    measured: str
    """What was measured; where it cannot be done, why."""
    passed: bool | None
    """None: it cannot be done here, which is no failure."""
    meaning: str
    """What a failure means for the results."""

    @property
    def result(self) -> str:
        """The outcome in a word or two."""
        return "not possible" if self.passed is None else "pass" if self.passed else "FAIL"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A GPU as CUDA and NVML describe it; None is unknown."""

    cuda_index: int
    cuda_name: str
    cuda_bytes: int
    uuid: str
    """NVML's, which CUDA's led to."""
    nvml_name: str | None
    nvml_bytes: int | None
    back: tuple[int, ...]
    """CUDA indices that NVML's UUID leads back to."""
