"""How many optimizer steps were taken, and not skipped by a GradScaler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TakenSteps:
    """Counts an optimizer's steps, as a hook on it; those that a GradScaler skips do not count.

    They never reach an ordinary optimizer. A fused one is called all the same, with a tensor on the device that
    tells it to change nothing; these tensors are kept, and looked at when the count is asked for.
    """

    def __init__(self, watched: torch.optim.Optimizer | None = None) -> None:
        """Hang on an optimizer, or, where nothing skips its steps, on none."""
        self.called, self._found_inf = 0, list[Tensor]()
        """Of an optimizer that nothing skips, whoever takes its steps counts them here."""
        if watched is not None:
            watched.register_step_post_hook(self)

    def __call__(  # the signature that torch gives hooks
        self, optimizer: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]
    ) -> None:
        """Count one."""
        self.called += 1
        if (found := getattr(optimizer, "found_inf", None)) is not None:
            self._found_inf.append(found)

    @property
    def count(self) -> int:
        """Steps taken so far; with a fused optimizer under a GradScaler, this waits for the device."""
        if self._found_inf:
            self.called -= int(torch.stack(self._found_inf).count_nonzero())
            self._found_inf.clear()
        return self.called
