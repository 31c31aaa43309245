"""Where samples come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.spec.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """Where the samples come from: ``--data`` and ``--data-dir``."""

    kind: Literal["cifar10", "digits", "markov", "synthetic", "suite", "script", "folder", "text"]
    """``suite`` is the suite's own batches, and ``script`` a training script's data: ``--data``
    names neither."""
    path: str | None = None
    """The folder of ``folder:PATH``, or the file of ``text:FILE``, absolute."""
    directory: str = "data"
    """Where downloads and decoded images are kept, absolute."""

    @property
    def generated(self) -> bool:
        """Whether samples are computed, or the suite's own: nothing is downloaded or decoded."""
        return self.kind in ("markov", "synthetic", "suite", "script")

    @property
    def of_tokens(self) -> bool:
        """Whether samples are sequences of tokens."""
        return self.kind in ("markov", "text")

    def __str__(self) -> str:
        return self.kind if self.path is None else f"{self.kind}:{self.path}"

    @staticmethod
    def parse(word: str, directory: str = "data", *, elsewhere: bool = False) -> DataSource:
        """Parse a word such as ``cifar10``, or ``folder:PATH``.

        Args:
            word: of ``--data``.
            directory: for downloads and decoded images.
            elsewhere: whether a path is on other machines.

        Raises:
            UsageError: it is none of these, or the folder or file does not exist.
        """
        kind, _, name = word.partition(":")
        path = None
        if name and kind in ("folder", "text"):
            place = Path(name).resolve()
            path = str(place)
            if kind == "text" and not elsewhere and not place.is_file():
                raise UsageError(
                    f"There is no file '{name}'. Give text:FILE, whose bytes are the tokens."
                )
            if kind == "folder" and not elsewhere and not place.is_dir():
                raise UsageError(
                    f"There is no folder '{name}'. Give folder:PATH with train/ and test/."
                )
        elif name or kind not in ("cifar10", "digits", "markov", "synthetic"):
            allowed = "cifar10, digits, markov, synthetic, folder:PATH or text:FILE"
            raise UsageError(f"--data must be {allowed}, not '{word}'.")
        return DataSource(
            kind=kind,  # type: ignore[arg-type]  # it is one of these
            path=path,
            directory=str(Path(directory).resolve()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """A source of data that was looked at before anything runs, unless samples are computed."""

    source: DataSource
    classes: int | None = None
    """Number of classes, or size of the vocabulary, that the source really has; None where it is
    the suite's."""
    train_samples: int | None = None
    """Images to train on; None where the number of batches in an epoch is the suite's."""
    train_tokens: int | None = None
    """Bytes of a text that are trained on, its first ones; None for other data."""
    validation_tokens: int | None = None
    """Bytes of it that are validated on, its last ones."""
    fingerprint: str | None = None
    """Identifies a folder's images or a text on every machine; None for data that are the same
    everywhere."""
    left_out: tuple[str, ...] = ()
    """The images that cannot be read."""
