"""Another program on the simulated GPU 0: ``python -m tests.simgpu.neighbour``.

It runs until it is ended. It holds memory, and its kernels run all the time: it queues them
half a minute ahead, so that the GPU has work while this process waits for a core. It says when it
has begun.
"""

import ctypes
import time

HELD_BYTES = 512 * 2**20
PERIOD_S = 0.02
AHEAD_S = 30.0


def main() -> None:
    """Hold memory and compute."""
    runtime = ctypes.CDLL(None)  # which was preloaded
    pointer = ctypes.c_void_p()
    held_bytes = ctypes.c_size_t(HELD_BYTES)
    assert runtime.cudaSetDevice(0) == 0
    assert runtime.cudaMalloc(ctypes.byref(pointer), held_bytes) == 0
    print("begun", flush=True)
    until_s = time.monotonic()
    while True:
        more_s = time.monotonic() + AHEAD_S - until_s
        if more_s > 0:
            more_ns = ctypes.c_uint64(int(more_s * 1e9))
            runtime.simgpu_run(None, 0, more_ns, 0)
            until_s += more_s
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
