"""Batches on their way to a device: copied with or without waiting, and made ready one ahead of the step."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import torch
from torch import Tensor

from bench.devices.backend import SideStream, backend_of

Batch = tuple[Tensor, Tensor]
LOOK_S = 0.1
"""How often a thread with nothing to do looks whether anybody still waits for it."""


def to_device(batch: Batch, device: torch.device, non_blocking: bool = False) -> Batch:
    """Copy a batch to ``device``.

    Args:
        batch: inputs and targets, each (B, ...).
        device: where they are wanted; what is there already is not copied.
        non_blocking: do not wait for the copy. Only from pinned memory does that save anything, so a batch in
            pageable memory is pinned first.
    """
    inputs, targets = batch
    return _moved(inputs, device, non_blocking), _moved(targets, device, non_blocking)


def _moved(tensor: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
    pageable = tensor.device.type == "cpu" and backend_of(device).is_gpu and not tensor.is_pinned()
    # The allocator of pinned memory knows of the copy under way, and hands the buffer out again only when it is done.
    return (tensor.pin_memory() if non_blocking and pageable else tensor).to(device, non_blocking=non_blocking)


class Prefetcher:
    """Batches made ready one ahead: on a stream of the GPU beside the step's, or on a CPU in a thread.

    Close it, or use it as a context, where not all batches are taken; one that is dropped ends its thread too.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        device: torch.device,
        prepare: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        """Begin with the first batch.

        Args:
            batches: where batches come from; it is iterated, and closed, on the prefetcher's side.
            device: where batches are used.
            prepare: copies, casts and normalises a batch; called on the prefetcher's stream, or in its thread.
        """
        made = _made(batches, prepare)
        backend = backend_of(device)
        self._ahead: _OnStream | _InThread = (
            _OnStream(made, backend.side_stream()) if backend.is_gpu else _InThread(made)
        )

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, in the order of the source.

        Raises:
            StopIteration: there are no more, or the prefetcher was closed.
            Exception: what the source or ``prepare`` raised for this batch; nothing comes after it.
        """
        return self._ahead.take()

    def close(self) -> None:
        """Stop making batches, and close the source."""
        self._ahead.close()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def feed(batches: Iterator[Batch], device: torch.device, *, prefetch: bool) -> AbstractContextManager[Iterator[Batch]]:
    """Return a context of ``batches``, one of them made ahead where ``prefetch`` says so."""
    return Prefetcher(batches, device) if prefetch else nullcontext(batches)


def _made(batches: Iterable[Batch], prepare: Callable[[Batch], Batch]) -> Iterator[Batch]:
    source = iter(batches)
    try:
        for batch in source:
            yield prepare(batch)
    finally:
        if (close := getattr(source, "close", None)) is not None:
            close()


class _OnStream:
    """One batch ahead on a stream of its own: queued there before the step that runs meanwhile is queued."""

    def __init__(self, made: Iterator[Batch], stream: SideStream) -> None:
        self._made, self._stream = made, stream
        # What the source holds on the device already, such as resident images, was written on the current stream.
        self._stream.wait()
        self._next: Batch | None = None
        self._error: BaseException | None = None
        self._load()

    def _load(self) -> None:
        self._next = None
        with self._stream.use():
            try:
                self._next = next(self._made, None)
            except Exception as error:  # raised when this batch is asked for, not one batch too early
                self._error = error

    def take(self) -> Batch:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._next is None:
            raise StopIteration
        batch = self._next
        self._stream.join(batch)
        self._load()
        return batch

    def close(self) -> None:
        self._next = None
        self._made.close()  # type: ignore[attr-defined]  # a generator


class _InThread:
    """One batch ahead in a thread, which begins with the next when one has been taken, and not before."""

    def __init__(self, made: Iterator[Batch]) -> None:
        self._queue: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(1)
        self._stop = threading.Event()
        self._ended = False
        # The thread knows the queue and not this object, so that one that is dropped unclosed can tell it to stop.
        self._thread = threading.Thread(
            target=_produce, args=(made, self._queue, self._room, self._stop), name="ampmeter-prefetcher", daemon=True
        )
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def take(self) -> Batch:
        found = None if self._ended else self._queue.get()
        if isinstance(found, tuple):
            self._room.release()
            return found
        self._ended = True
        if found is None:
            raise StopIteration
        raise found

    def close(self) -> None:
        self._ended = True
        self._stop.set()
        self._room.release()  # the thread may be waiting for it
        self._thread.join()


def _produce(
    made: Iterator[Batch],
    to: queue.SimpleQueue[Batch | BaseException | None],
    room: threading.Semaphore,
    stop: threading.Event,
) -> None:
    last: BaseException | None = None
    try:
        # Room comes before the batch is made, or a second one would be held here while the first waits to be taken.
        while _acquired(room, stop) and (batch := next(made, None)) is not None:
            to.put(batch)
    except BaseException as error:
        last = error
    finally:
        made.close()  # type: ignore[attr-defined]  # a generator
    to.put(last)


def _acquired(room: threading.Semaphore, stop: threading.Event) -> bool:
    """Wait for room; say whether anybody still wants a batch."""
    while not stop.is_set():
        if room.acquire(timeout=LOOK_S):
            return not stop.is_set()
    return False
