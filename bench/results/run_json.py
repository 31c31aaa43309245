"""run.json as typed records: the fields of the records say what it holds, and msgspec checks it.

Parts may be missing, and fields that have a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from bench.results.records import Environment
from bench.spec.errors import UsageError
from bench.spec.request import Request
from bench.spec.trial import SuiteRef, Trial

# Version of run.json and of the CSVs. It is raised when a part is renamed or removed, or changes
# its meaning.
FORMAT = 10


class PlannedTrial(Struct, frozen=True, kw_only=True):
    """A trial of the plan, by which a reader finds those that have no row."""

    trial: str
    cell: str
    phase: str
    replicate: int
    seed: int
    arms: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenRequest(Request):
    """A request as it is written: its suites are found by then."""

    suites: tuple[SuiteRef, ...] = ()  # type: ignore[assignment]  # names in the request itself


class WrittenData(Struct):
    """What is read again of a source of data."""

    source: str
    fingerprint: str | None = None


class RunFile(Struct, kw_only=True):
    """run.json."""

    format: int
    run: str = ""
    version: str = ""
    request: WrittenRequest | UnsetType = UNSET
    environment: Environment | UnsetType = UNSET
    data: list[WrittenData] = []
    planned: list[PlannedTrial] = []
    warnings: list[str] = []
    started: str | None = None
    undecided: list[str] = []
    """What the time of ``--within`` left open, such as ``speed of mlp on cpu``."""
    finished: str | None = None


def planned(trial: Trial) -> PlannedTrial:
    """Describe a trial of the plan for run.json."""
    return PlannedTrial(
        trial=trial.id,
        cell=trial.cell_id,
        phase=trial.phase,
        replicate=trial.replicate,
        seed=trial.seed,
        arms=[arm.added for arm in trial.arms],
    )


def read_run(folder: Path) -> dict[str, Any]:
    """Read a run's run.json.

    Raises:
        UsageError: there is no run, or one of another format, or a value is of another type.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise UsageError(
            f"There is no run in '{folder}': it has no run.json. Give a folder that a run wrote, "
            "such as results/NAME."
        )
    try:
        # not msgspec's reader: a folder's name may have bytes that are no UTF-8
        run = msgspec.convert(json.loads(path.read_bytes()), dict[str, Any])
        if run.get("format") != FORMAT:
            raise UsageError(
                f"The run in '{folder}' is not of format {FORMAT}, which this version reads. Use "
                "the version of ampmeter that wrote it, or start a new run."
            )
        msgspec.convert(run, RunFile, dec_hook=_built)
    except (ValueError, RecursionError, OverflowError) as error:  # msgspec's errors are ValueErrors
        why = str(error).rstrip(".")
        raise UsageError(
            f"'{path}' cannot be read: {why}. Restore the file, or start a new run."
        ) from error
    return run


def request_of(run: Mapping[str, Any]) -> Request:
    """Return the request of a run as it was read, with its suites as ``--suite`` takes them."""
    suites = msgspec.convert(run["request"]["suites"], list[SuiteRef])
    words = dict.fromkeys(suite.word for suite in suites)
    return msgspec.convert({**run["request"], "suites": [*words]}, Request, dec_hook=_built)


def _built(kind: type, value: Any) -> Any:
    return kind(value)


def text_of(run: Mapping[str, Any]) -> str:
    """Return what run.json is to hold."""
    return json.dumps(run, indent=2, default=_builtins) + "\n"


def _builtins(record: Any) -> Any:
    """Return a record as JSON has it; paths and the like become texts."""
    return msgspec.to_builtins(record, enc_hook=str)
