"""A suite whose model breaks something in the middle of a forward pass: two layers, and a fault.

The fault befalls each process that runs the model, once, and ends with it at the latest.
"""

import gc
import os
import signal
import time

from bench.spec import Data, Suite


def suite(
    *,
    fault: str = "",
    at: int = 0,
    after_s: float = 0.0,
    value: int = 0,
    rank: int = 0,
    side: int = 8,
    batch_size: int = 4,
) -> Suite:
    """Return the suite.

    Args:
        fault: of ``FAULTS``; empty for none.
        at: the forward pass that it befalls.
        after_s: instead of ``at``, how long after the first pass of a timed round.
        value: what it is called with.
        rank: the only process, of several that train together, that it befalls.
        side: of the images, in pixels.
        batch_size: the smallest.
    """

    def model(data):
        from torch import nn

        is_here = fault and int(os.environ.get("RANK", "0")) == rank

        class Breaking(nn.Module):
            passes, first_s, has_begun = 0, 0.0, False

            def forward(self, inputs):
                self.passes += 1
                if not self.first_s and not gc.isenabled():  # as in timed rounds
                    self.first_s = time.monotonic()
                if is_here and not self.has_begun and self.is_due():
                    self.has_begun = True
                    FAULTS[fault](inputs, value)
                return inputs

            def is_due(self):
                if not after_s:
                    return self.passes == at
                return self.first_s and time.monotonic() - self.first_s >= after_s

        first, last = nn.Linear(3 * side * side, 16), nn.Linear(16, data.classes)
        return nn.Sequential(nn.Flatten(), first, Breaking(), nn.BatchNorm1d(16), nn.ReLU(), last)

    def optimizer(parameters):
        from torch import optim

        return optim.SGD(parameters, lr=0.01)

    return Suite(
        name="faulty",
        title="two layers and a fault",
        data=Data(input_shape=(3, side, side), classes=2, steps_per_epoch=30),
        model=model,
        optimizer=optimizer,
        batch_size=batch_size,
        batch_sizes=(batch_size,),
        epochs=1,
    )


def machine_of(inputs):
    """Return the machine and the GPU's number there, and let the fault end with this process."""
    from tests.simgpu.machine import Machine

    machine = Machine(os.environ["SIM_SHM"])
    gpu = inputs.device.index
    machine.poke("holder", gpu, os.getpid())
    return machine, gpu


def throttle(inputs, reasons):
    """Hold the clocks down."""
    machine, gpu = machine_of(inputs)
    machine.throttle(gpu, reasons)


def poke(field):
    """Return a fault that sets a field of the machine."""

    def begin(inputs, value):
        machine, gpu = machine_of(inputs)
        machine.poke(field, gpu, value)

    return begin


def out_of_memory(inputs, gibibytes):
    """Ask for more memory than there is."""
    import torch

    torch.empty(gibibytes * 2**30, dtype=torch.uint8, device=inputs.device)


def end(_inputs, _value):
    """End this process at once; it reports nothing."""
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "throttle": throttle,
    "lost": poke("lost"),
    "silent": poke("nvml_error"),
    "sticky": poke("sticky_error"),
    "oom": out_of_memory,
    "end": end,
}
