"""Batches prefetched one ahead of the step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
        """Begin with the first batch.

        Args:
            batches: the source; it is iterated, and closed, on the prefetcher's side.
            device: where batches are used.
            prepare: copies, casts and normalises a batch; called on the prefetcher's stream, or in its thread.
        """
        self._prepared = _prepared(batches, prepare)
        backend = backend_of(device)
        self._stream = backend.side_stream if backend.is_gpu else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ampmeter-prefetcher")  # idle where there is a stream
        if self._stream:  # what the source holds on the device, such as images, was written on the current stream
            self._stream.wait()
        self._ahead: Future[Batch | None] | None = self._begin()

    def _begin(self) -> Future[Batch | None]:
        """Begin with the next batch; its result is None after the last, and an error is raised when it is taken."""
        if self._stream is None:
            return self._thread.submit(next, self._prepared, None)
        ahead: Future[Batch | None] = Future()
        with self._stream.use():
            try:
                ahead.set_result(next(self._prepared, None))
            except Exception as error:
                ahead.set_exception(error)
        return ahead

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, in the order of the source.

        Raises:
            StopIteration: there are no more, or the prefetcher was closed.
            Exception: what the source or ``prepare`` raised for this batch; nothing comes after it.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None or (batch := ahead.result()) is None:
            raise StopIteration
        if self._stream:
            self._stream.join(tensors(batch))
        self._ahead = self._begin()
        return batch

    def close(self) -> None:
        """Stop preparing batches, and close the source."""
        self._ahead = None
        self._thread.shutdown()
        self._prepared.close()


def feed(
    batches: Generator[Batch, None, None], device: torch.device, *, prefetch: bool
) -> AbstractContextManager[Iterator[Batch]]:
    """Return a context of ``batches``, prefetched if ``prefetch``, that closes them: what they hold is freed."""
    return closing(Prefetcher(batches, device) if prefetch else batches)


def _prepared(batches: Iterable[Batch], prepare: Callable[[Batch], Batch]) -> Generator[Batch, None, None]:
    source = iter(batches)
    try:
        for batch in source:
            yield prepare(batch)
    finally:
        if (close := getattr(source, "close", None)) is not None:
            close()
