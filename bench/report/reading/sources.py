"""The same images under two paths, and other images under one: told by what they are, not by where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from bench.report.reading.load import Run


def fingerprints(run: Run) -> dict[str, str]:
    """Return the fingerprints that a run kept of its sources of data, by the sources' names."""
    found = [part for part in run.list("data") if isinstance(part, dict)]
    return {str(part["source"]): str(part["fingerprint"]) for part in found if part.get("fingerprint")}


def renamed(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """Return what each source of a run is to be called, by the run's label and the source's own name.

    Sources of one fingerprint have the name that the first of them has; a name that stands for other images already
    gets the fingerprint's first six digits. Sources without a fingerprint keep their names.
    """
    names: dict[str, str] = {}
    for run in runs:
        for source, print_of in fingerprints(run).items():
            if print_of not in names:
                names[print_of] = f"{source}#{print_of[:6]}" if source in names.values() else source
    return {(run.label, source): names[print_of] for run in runs for source, print_of in fingerprints(run).items()}


def unify(runs: Sequence[Run], frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the column ``data`` as ``renamed`` says."""
    changes = {key: name for key, name in renamed(runs).items() if key[1] != name}
    if not changes or frame.empty:
        return frame
    pairs = frame["run"].astype(str), frame["data"].astype(str)
    data = [changes.get(pair, pair[1]) for pair in zip(*pairs, strict=True)]
    return frame.assign(data=pd.Series(data, index=frame.index, dtype=str).astype(frame["data"].dtype))


def remarks(runs: Sequence[Run]) -> list[str]:
    """Say which paths hold the same images, and which one path holds other ones."""
    said, fingerprints_of = [], {run.label: fingerprints(run) for run in runs}
    for (label, source), name in renamed(runs).items():
        if source != name and name == f"{source}#{fingerprints_of[label][source][:6]}":
            said.append(f"{source} of run {label} holds other images than in the runs before it; it is called {name}.")
        elif source != name:
            said.append(f"{source} of run {label} holds the same images as {name}, and is called that here.")
    return said
