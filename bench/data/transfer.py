"""Batches prefetched one ahead of the step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing

import torch

from bench.data.batch import Batch, tensors
from bench.devices.backend import backend_of


class Prefetcher:
    """Batches prepared one ahead: on a GPU on a stream next to the step's, on a CPU in a thread.

    Close it, or use ``contextlib.closing``, where not all batches are taken.
    """

    def __init__(
        self, batches: Iterable[Batch], device: torch.device, prepare: Callable[[Batch], Batch] = lambda batch: batch
    ) -> None:
        """Take the source; its first batch is prepared when it is asked for.

        Args:
            batches: the source; it is iterated on the prefetcher's side.
            device: where batches are used.
            prepare: copies, casts and normalises a batch; called on the prefetcher's stream, or in its thread.
        """
        self._source, prepared = batches, map(prepare, batches)
        self._ahead = _on_a_stream(prepared, device) if backend_of(device).is_gpu else _in_a_thread(prepared)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, in the order of the source.

        Raises:
            StopIteration: there are no more, or the prefetcher was closed.
            Exception: what the source or ``prepare`` raised; nothing comes after it.
        """
        return next(self._ahead)

    def close(self) -> None:
        """Stop preparing batches, and close the source: what it holds is freed."""
        self._ahead.close()
        if isinstance(self._source, Generator):
            self._source.close()


def feed(
    batches: Generator[Batch, None, None], device: torch.device, *, prefetch: bool
) -> AbstractContextManager[Iterator[Batch]]:
    """Return a context of ``batches``, prefetched if ``prefetch``, that closes them: what they hold is freed."""
    return closing(Prefetcher(batches, device) if prefetch else batches)


def _in_a_thread(prepared: Iterator[Batch]) -> Generator[Batch, None, None]:
    with ThreadPoolExecutor(1, thread_name_prefix="ampmeter-prefetcher") as thread:
        ahead = thread.submit(next, prepared, None)
        while (batch := ahead.result()) is not None:
            ahead = thread.submit(next, prepared, None)
            yield batch


def _on_a_stream(prepared: Iterator[Batch], device: torch.device) -> Generator[Batch, None, None]:
    stream = backend_of(device).side_stream
    stream.wait()  # what the source holds on the device, such as images, was written on the current stream
    with stream.use():
        ahead = next(prepared, None)
    while (batch := ahead) is not None:
        stream.join(tensors(batch))
        with stream.use():
            ahead = next(prepared, None)
        yield batch
