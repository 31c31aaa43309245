"""Another program on a simulated GPU: ``python -m tests.simgpu.neighbour GPU MIB BUSY`` until it is ended.

It holds so much memory, and lets kernels run for the share BUSY of the time, from 0 to 1. It says when it has begun.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress

PERIOD_S = 0.02


def main(gpu: int, mib: int, busy: float) -> None:
    """Hold memory and compute."""
    runtime = ctypes.CDLL(None)  # which was preloaded
    pointer = ctypes.c_void_p()
    assert runtime.cudaSetDevice(gpu) == 0
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(mib * 2**20)) == 0
    print("begun", flush=True)
    with suppress(PermissionError):  # or it waits for a core on a busy machine, and computes nothing meanwhile
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    lasting_s, before_s = 0.0, time.monotonic()
    while True:
        if busy:
            runtime.simgpu_run(None, gpu, ctypes.c_uint64(int(lasting_s * 1e9)), 0)
        time.sleep(PERIOD_S)
        now_s = time.monotonic()
        lasting_s, before_s = busy * (now_s - before_s), now_s


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
