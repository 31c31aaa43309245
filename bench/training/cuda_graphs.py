"""A step's forward and backward pass as a CUDA graph: captured once, then replayed with one launch.

The graph holds the forward pass, the loss and the backward pass, of all micro-batches where gradients are accumulated.
Clipping, GradScaler, optimizer and schedule stay outside: ``GradScaler.step`` reads from the device whether a gradient
overflowed, which a capture forbids, and a captured optimizer would keep the learning rate of the capture (PyTorch's
notes, "CUDA semantics", section "Usage with torch.cuda.amp").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.devices.backend import CudaGraph, backend_of, out_of_memory_behind
from bench.spec.errors import UnsupportedError

WARM_UP = 3
"""Ordinary training steps before the capture, in which libraries choose algorithms and allocate workspaces."""


@dataclass(slots=True, kw_only=True)
class GraphedStep:
    """Gradients of a batch, computed by a graph from the fourth batch on; all batches have one shape."""

    gradients: Callable[[Tensor, Tensor], Tensor]
    """Computes them without a graph: takes inputs and targets and returns the loss."""
    device: torch.device
    done: int = 0
    held: tuple[Tensor, ...] = ()
    """Tensors that the graph reads and writes: inputs, targets and the loss."""
    graph: CudaGraph = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.graph = backend_of(self.device).graph()

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the batch's gradients; return the loss, a tensor that no later step overwrites.

        Raises:
            UnsupportedError: the step has an operation that cannot be captured, such as reading a value on the host.
            ValueError: the batch is not of the shape that was captured.
        """
        if self.done < WARM_UP:
            self.done += 1
            return self.graph.warm_up(lambda: self.gradients(inputs, targets))
        if not self.held:
            self._capture(inputs, targets)
        static_inputs, static_targets, loss = self.held
        if inputs.shape != static_inputs.shape or targets.shape != static_targets.shape:
            raise ValueError(f"a graph of batches {tuple(static_inputs.shape)} cannot take {tuple(inputs.shape)}")
        static_inputs.copy_(inputs)
        static_targets.copy_(targets)
        self.graph.replay()
        return loss.clone()

    def _capture(self, inputs: Tensor, targets: Tensor) -> None:
        """Capture the step without running it."""
        static_inputs, static_targets = inputs.clone(), targets.clone()
        try:
            loss = self.graph.capture(lambda: self.gradients(static_inputs, static_targets))
        except RuntimeError as error:
            if (original := out_of_memory_behind(error)) is not None:
                raise original from None
            cause = error.__context__ or error  # ending a failed capture raises too, which hides the cause
            reason = str(cause).strip().splitlines()[0]
            raise UnsupportedError(f"cuda-graphs: the step cannot be captured: {reason}") from error
        self.held = (static_inputs, static_targets, loss.detach())
