"""Batches prefetched one ahead of the step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from bench.data.batch import Batch, tensors
from bench.devices.backend import backend_of


def prefetched(
    batches: Iterable[Batch],
    device: torch.device,
    prepare: Callable[[Batch], Batch] = lambda batch: batch,
) -> Generator[Batch, None, None]:
    """Yield batches prepared one ahead: on a GPU on a side stream, on a CPU in a thread.

    Close it, or use ``contextlib.closing``, where not all batches are taken: what the source holds
    is freed.

    Args:
        batches: the source; it is iterated on the stream, or in the thread.
        device: where batches are used.
        prepare: copies, casts and normalises a batch; called on the stream, or in the thread.

    Raises:
        Exception: what the source or ``prepare`` raised; nothing comes after it.
    """
    prepared = map(prepare, batches)
    is_gpu = backend_of(device).is_gpu
    try:
        yield from _on_a_stream(prepared, device) if is_gpu else _in_a_thread(prepared)
    finally:
        if isinstance(batches, Generator):
            batches.close()


def _in_a_thread(prepared: Iterator[Batch]) -> Generator[Batch, None, None]:
    with ThreadPoolExecutor(1, thread_name_prefix="ampmeter-prefetcher") as thread:
        # None is the end: no batch is None.
        ahead = thread.submit(next, prepared, None)
        while (batch := ahead.result()) is not None:
            ahead = thread.submit(next, prepared, None)
            yield batch


def _on_a_stream(prepared: Iterator[Batch], device: torch.device) -> Generator[Batch, None, None]:
    stream = backend_of(device).side_stream
    # What the source holds on the device, such as images, was written on the current stream.
    stream.wait()
    with stream.use():
        ahead = next(prepared, None)
    while (batch := ahead) is not None:
        stream.join(tensors(batch))
        with stream.use():
            ahead = next(prepared, None)
        yield batch
