"""A step's forward and backward pass as a CUDA graph: captured once, then replayed with one launch.

Captured are the forward pass, the loss and the backward pass, of all parts where gradients are accumulated. Clipping,
GradScaler, optimizer and schedule stay outside: ``GradScaler.step`` asks the device whether a gradient overflowed,
which nothing may do while a graph is captured, and an optimizer would be captured with the learning rate of that
moment (PyTorch's notes, "CUDA semantics", section "Usage with torch.cuda.amp").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.devices import out_of_memory
from bench.spec.errors import UnsupportedError

WARM_UP = 3
"""Steps before the capture, in which libraries and cuDNN choose and allocate what they need; each trains."""


@dataclass(slots=True, kw_only=True)
class GraphedStep:
    """Gradients of a batch, computed by a graph from the fourth batch on; all batches have one shape."""

    gradients: Callable[[Tensor, Tensor], Tensor]
    """Does it without a graph: takes inputs and targets, leaves gradients behind and returns the loss."""
    device: torch.device
    done: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    held: tuple[Tensor, ...] = ()
    """What the graph reads and writes: inputs, targets and the loss."""
    side: torch.cuda.Stream | None = field(default=None, repr=False)

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Leave the batch's gradients behind; return the loss, a tensor that no later step overwrites.

        Raises:
            UnsupportedError: the step does what cannot be captured, such as asking for a value on the host.
            ValueError: the batch is not of the shape that was captured.
        """
        if self.done < WARM_UP:
            self.done += 1
            return self._beside(inputs, targets)
        if self.graph is None:
            self._capture(inputs, targets)
        assert self.graph is not None
        static_inputs, static_targets, loss = self.held
        if inputs.shape != static_inputs.shape or targets.shape != static_targets.shape:
            raise ValueError(f"a graph of batches {tuple(static_inputs.shape)} cannot take {tuple(inputs.shape)}")
        static_inputs.copy_(inputs)
        static_targets.copy_(targets)
        self.graph.replay()
        return loss.clone()

    def _beside(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Run on the side stream, on which will be captured: what libraries allocate for a stream is there by then."""
        self.side = self.side or torch.cuda.Stream(self.device)
        current = torch.cuda.current_stream(self.device)
        self.side.wait_stream(current)
        with torch.cuda.stream(self.side):
            loss = self.gradients(inputs, targets)
        current.wait_stream(self.side)
        return loss

    def _capture(self, inputs: Tensor, targets: Tensor) -> None:
        """Capture the step without running it."""
        static_inputs, static_targets = inputs.clone(), targets.clone()
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        try:
            # Other threads, such as a loader's that pins batches, may go on asking CUDA for what a capture forbids.
            with torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local"):
                loss = self.gradients(static_inputs, static_targets)
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # which torch leaves undone where ending a broken capture raises
            if (original := out_of_memory.behind(error)) is not None:
                raise original from None
            cause = error.__context__ or error  # ending a broken capture fails too, which hides why it broke
            reason = str(cause).strip().splitlines()[0]
            raise UnsupportedError(f"cuda-graphs: the step cannot be captured: {reason}") from error
        self.graph, self.held = graph, (static_inputs, static_targets, loss.detach())
