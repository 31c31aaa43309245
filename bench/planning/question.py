"""What a phase is asked for in one cell; its answer is trials."""

from __future__ import annotations

from dataclasses import dataclass

from bench.results.records import Device
from bench.spec.phase import Phase
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.techniques import ArmSpec
from bench.spec.trial import Cell, Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A phase of a request in a cell, with the precisions that are compared there."""

    phase: Phase
    request: Request
    suite: Suite
    cell: Cell
    device: Device
    precisions: tuple[str, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the request, else the suite's."""
        return self.request.seeds or self.suite.seeds

    def trial(self) -> Trial:
        """Return a trial with all arms, in which phases replace what differs."""
        request = self.request
        resumes = self.phase.checkpoints
        return Trial(
            cell=self.cell,
            phase=self.phase.name,
            arms=tuple(ArmSpec(precision=name) for name in self.precisions),
            seed=self.seeds[0],
            clip_grad=request.clip_grad,
            start=str(request.start) if request.start and resumes else None,
            keep_checkpoints=request.keep_checkpoints and resumes,
            protocol=request.protocol,
        )
