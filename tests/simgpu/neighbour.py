"""Another program on a simulated GPU: ``python -m tests.simgpu.neighbour GPU MIB``.

It runs until it is ended. It holds so much memory, and its kernels run all the time: it queues them
half a minute ahead, so that the GPU has work while this process waits for a core. It says when it
has begun.
"""

import ctypes
import sys
import time

PERIOD_S, AHEAD_S = 0.02, 30.0


def main(gpu: int, mib: int) -> None:
    """Hold memory and compute."""
    runtime = ctypes.CDLL(None)  # which was preloaded
    pointer = ctypes.c_void_p()
    assert runtime.cudaSetDevice(gpu) == 0
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(mib * 2**20)) == 0
    print("begun", flush=True)
    until_s = time.monotonic()
    while True:
        more_s = time.monotonic() + AHEAD_S - until_s
        if more_s > 0:
            runtime.simgpu_run(None, gpu, ctypes.c_uint64(int(more_s * 1e9)), 0)
            until_s += more_s
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
