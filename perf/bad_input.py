#!/usr/bin/env python3
"""Bad input: generated command lines, and damaged results folders.

    python perf/bad_input.py [--lines N] [--folders N] [--seed N]

1. This process answers command lines of odd words, runs with --dry-run. Each must end with a
   documented exit code (0, 1, 2) and without a traceback; with 2 it must print a sentence at the
   end, else something, and JSON if ``list`` or ``doctor`` was called with --json.
2. ``report``, ``compare`` and ``--resume --dry-run`` read results folders that are damaged in one
   to three places (bytes, lines, cells, types in run.json, files). The same must hold, and
   ``--resume`` must refuse each CSV that ``report`` refuses.

The machine is made up (perf/made_up.py), the code is not. The folders are the committed runs and a
run of the made-up machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import run_bench
from bench.cli import parser
from bench.cli.commands import optional_commands
from bench.results.records import Seen
from bench.spec.errors import UsageError
from perf.made_up import CPU, GPU, MadeUpMachine

ROOT = Path(__file__).resolve().parents[1]
# End of a refusal.
SENTENCE = re.compile(r"^run_bench: .*[.?!]\s*\Z", re.MULTILINE | re.DOTALL)
# Beginning of a refusal of a file of rows.
REFUSED = re.compile(r"run_bench: '[^']*\.csv'")
# A refusal of a row because of the device in run.json; only ``report`` checks it.
OF_RUN = "more memory than the device has"
# Exit codes of a command that nobody stops.
CODES = {0, 1, 2}
COMMITTED = sorted(ROOT.glob("results/*/run.json"))
WORDS = [
    "mlp",
    "digits",
    "mlp,digits",
    "cpu",
    "0",
    "0,1",
    "0+1",
    "cpu+cpu",
    "fp32,amp-bf16",
    "amp-fp16:init_scale=2",
]
WORDS += [
    "64",
    "64,max",
    "max",
    "1%",
    "150%",
    "10s",
    "memory,speed",
    "train",
    "width=8",
    "width=8,16",
    "synthetic",
]
WORDS += [
    "ray",
    "ray://h:1",
    "V100",
    "compile",
    "channels-last,grad-accumulation=2",
    "94%",
    "2",
    "0,1,2,3,4",
    "1.0",
]
ODD = [
    "",
    " ",
    ",",
    ",,",
    "=",
    "-",
    "--",
    "-1",
    "0x10",
    "1e9",
    "1e400",
    "nan",
    "inf",
    "９",
    "٣",
    "%",
    "100%%",
    "a=b=c",
]
ODD += [
    "\x00",
    "\x1b[2J",
    "\ud800",
    "\u202e",
    "é" * 300,
    "x" * 5000,
    "/dev/null",
    "/etc/passwd",
    "/",
    "~",
    "None",
]
ODD += [
    "[]",
    "{}",
    "'",
    '"',
    "`id`",
    "$(id)",
    "%s",
    "{0}",
    "../x",
    "no/such/file.py",
    "mlp,",
    "999999999999999999999",
]
CELLS = [
    "",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e308",
    "1e400",
    "abc",
    "=1+1",
    "0x10",
    "１",
    "9" * 200_000,
    '"',
    "\x00",
]
CELLS += [
    "a,b",
    '"\n"',
    "fp32",
    "ok",
    "failed",
    "train",
    "2147483648",
    "yes",
    "[1",
    '{"a":',
    "\ud800",
    "+",
    "a+b",
]
VALUES = [
    None,
    True,
    [],
    {},
    "x",
    "",
    0,
    -1,
    1.5,
    1e308,
    10**400,
    [[]],
    [None],
    {"a": 1},
    "2026",
    ["cpu"],
    [{}],
    -0.0,
]


@dataclass(slots=True)
class Tally:
    """Exit codes and failures of one part."""

    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def take(self, argv: Sequence[str], code: object, printed: str) -> None:
        """Count an answer, and keep it as a failure if ``wrong`` objects to it."""
        self.codes[str(code)] += 1
        if why := wrong(argv, code, printed):
            self.failures.append(
                f"{[word[:80] for word in argv]} → {code}, {why}\n{printed[-3000:]}"
            )


def wrong(argv: Sequence[str], code: object, printed: str) -> str:
    """Say what is wrong with an answer; empty if nothing is."""
    if code not in CODES or "Traceback (most recent call last)" in printed:
        return "a traceback, or no documented code"
    if code == 2:
        return "" if SENTENCE.search(printed) else "no sentence at the end"
    if not printed.strip():
        return "nothing printed"
    if argv[0] == "list" and any(word == "--json" for word in argv) and "-h" not in argv:
        try:
            json.loads(printed)
        except ValueError:
            return "" if printed.startswith("usage:") else "no JSON"
    return ""


def probed(_launcher: object, target: str, *arguments: Any) -> Any:
    """Answer the calls of ``list --gpus`` and ``doctor`` to a process: a made-up survey, and probes that all fail."""
    name = target.rpartition(":")[2]
    if name == "survey":
        return MadeUpMachine().survey(*arguments)
    if name == "look":
        return (
            Seen(device=GPU, memory_free_bytes=2**30),
            Seen(device=CPU, memory_free_bytes=2**30),
        ), ""
    raise UsageError("nothing is measured on a made-up machine")


def answer(argv: Sequence[str]) -> tuple[object, str]:
    """Return the exit code of a command line, answered in this process, and what it prints, a traceback included."""
    out = io.TextIOWrapper(
        io.BytesIO(), encoding="utf-8", errors="surrogateescape", write_through=True
    )
    with (
        mock.patch("bench.launch.local.LocalLauncher.call", probed),
        mock.patch("bench.launch.open_launcher", side_effect=lambda _request: MadeUpMachine()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            code: object = run_bench.main(argv)
        except SystemExit as end:  # --help and --version
            code = end.code or 0
        except BaseException:
            code = "traceback"
            traceback.print_exc()
    return code, out.buffer.getvalue().decode(errors="replace")


def generate(
    strategy: st.SearchStrategy[Any], count: int, seed: int, take: Callable[[Any], None]
) -> None:
    """Pass ``count`` examples of a strategy on."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def run(example: Any) -> None:
        take(example)

    run()


# Command lines.


def as_word(text: str) -> str:
    """Return a text as a program receives it on its command line: any bytes but NUL."""
    return os.fsdecode(text.replace("\0", "").encode(errors="surrogatepass"))


def command_lines() -> st.SearchStrategy[list[str]]:
    """Return command lines of existing options with fitting and odd values."""
    word = st.one_of(
        st.sampled_from(WORDS),
        st.sampled_from(ODD),
        st.text(max_size=20).map(lambda text: text.lstrip("/.")),
    ).map(as_word)

    def options(of: argparse.ArgumentParser, without: str = "") -> st.SearchStrategy[list[str]]:
        flags = [
            name for action in of._actions for name in action.option_strings if name != without
        ]
        spelled = st.one_of(
            st.sampled_from(flags), st.sampled_from(flags).map(lambda flag: flag[:-1])
        )
        valued = st.tuples(spelled, word).flatmap(
            lambda pair: st.sampled_from([[*pair], ["=".join(pair)]])
        )
        return st.lists(st.one_of(valued, spelled.map(lambda flag: [flag])), max_size=6).map(
            lambda each: list(itertools.chain(*each))
        )

    suite = st.sampled_from(
        [["--suite", "mlp"], ["--suite", "mlp,digits", "--gpus", "cpu"], ["--suite", "digits"], []]
    )
    runs = st.tuples(suite, options(parser.run_parser())).map(
        lambda parts: [*parts[0], *parts[1], "--dry-run"]
    )
    others = parser.command_parsers(optional_commands())
    folder = st.one_of(st.just("run"), word)
    report = st.tuples(st.lists(folder, max_size=3), options(others["report"])).map(
        lambda parts: ["report", *parts[0], *parts[1]]
    )
    compare = st.tuples(st.lists(folder, max_size=3), options(others["compare"])).map(
        lambda parts: ["compare", *parts[0], *parts[1]]
    )
    odd = st.tuples(word.filter(lambda text: text != "doctor"), st.lists(word, max_size=3)).map(
        lambda parts: [parts[0], *parts[1], "--dry-run"]
    )
    doctor = options(others["doctor"]).map(lambda words: ["doctor", *words])
    listing = options(others["list"]).map(lambda words: ["list", *words])
    return st.one_of(runs, runs, runs, runs, report, compare, odd, doctor, listing)


def lines(count: int, seed: int, folder: Path) -> Tally:
    """Answer command lines in a folder that holds only one run, ``run``."""
    tally, back = Tally(), Path.cwd()
    work = folder / "lines" / "a" / "b" / "c"
    work.mkdir(parents=True)
    measured_run(work / "run", quick=True)
    os.chdir(work)
    try:
        generate(command_lines(), count, seed, lambda argv: tally.take(argv, *answer(argv)))
    finally:
        os.chdir(back)
    return tally


# Damaged folders.


def measured_run(folder: Path, *, quick: bool = False) -> Path:
    """Let the made-up machine measure a run, and return its folder."""
    words = [
        "--suite",
        "mlp",
        "--gpus",
        "0,cpu",
        "--precisions",
        "fp32,amp-bf16",
        "--data",
        "synthetic",
    ]
    words += ["--phases", "memory,speed" if quick else "memory,floor,speed,train,numerics"]
    words += (
        ["--batch-sizes", "64"]
        if quick
        else ["--epochs", "3", "--seeds", "0,1", "--batch-sizes", "64,128"]
    )
    words += ["--time-budget", "1s", "--out", str(folder)]
    with mock.patch("bench.run.reporting.report"):
        code, printed = answer(words)
    if code != 0:
        raise RuntimeError(f"the made-up run ended with {code}:\n{printed}")
    return folder


def damages() -> st.SearchStrategy[list[tuple[str, str, int, int, Any]]]:
    """Return one to three damages: the kind, the file, two places (modulo the file's length) and a value."""
    names = [
        "memory.csv",
        "speed.csv",
        "train.csv",
        "blocks.csv",
        "epochs.csv",
        "numerics_figures.csv",
    ]
    files = st.sampled_from(names)
    kinds = [
        "cut",
        "flip",
        "insert",
        "drop line",
        "double line",
        "cell",
        "cell",
        "cell",
        "drop column",
    ]
    kinds += ["delete", "folder", "link", "empty"]
    place = st.integers(min_value=0, max_value=2**31)
    csvs = st.tuples(st.sampled_from(kinds), files, place, place, st.sampled_from(CELLS))
    runs = st.tuples(
        st.sampled_from(
            ["json", "json", "json", "drop key", "deep", "flip", "cut", "insert", "delete"]
        ),
        st.just("run.json"),
        place,
        place,
        st.sampled_from(VALUES),
    )
    return st.lists(st.one_of(csvs, csvs, runs), min_size=1, max_size=3)


def damage(folder: Path, change: tuple[str, str, int, int, Any]) -> None:
    """Apply one of the ``damages`` to a file of a run."""
    kind, name, first, second, value = change
    path = folder / name
    if not path.is_file():
        return
    data = path.read_bytes()
    if kind in ("delete", "folder", "link"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
        if kind == "link":
            path.symlink_to(path)
    elif kind in ("cut", "flip", "insert", "empty"):
        at = first % max(1, len(data))
        odd = [b"\x00", b"\xff\xfe", b'"', b"\n", b"\r", b","][second % 6]
        changed = {"cut": data[:at], "empty": b"", "insert": data[:at] + odd + data[at:]}
        path.write_bytes(changed.get(kind, data[:at] + bytes([second % 256]) + data[at + 1 :]))
    elif kind in ("json", "drop key", "deep"):
        _damage_json(path, kind, first, value)
    else:
        _damage_lines(path, kind, first, second, value)


def _damage_json(path: Path, kind: str, first: int, value: Any) -> None:
    try:
        run = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    if kind == "deep":
        path.write_text('{"format": 7, "data": ' + "[" * 100_000 + "]" * 100_000 + "}")
        return
    parts = list(_parts(run))
    if not parts:
        return
    part, key = parts[first % len(parts)]
    if kind == "drop key":
        del part[key]
    else:
        part[key] = value
    path.write_text(json.dumps(run))


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a JSON value: its container and its key there."""
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield value, key
        yield from _parts(value[key])


def _damage_lines(path: Path, kind: str, first: int, second: int, value: str) -> None:
    text = path.read_bytes().decode(errors="surrogateescape")
    rows = [line.split(",") for line in text.split("\n")]
    row = rows[first % len(rows)]
    column = second % len(row)
    if kind == "drop line":
        rows.remove(row)
    elif kind == "double line":
        rows.append(row)
    elif kind == "cell":
        row[column] = value
    else:
        for each in rows:
            del each[column : column + 1]
    path.write_bytes("\n".join(map(",".join, rows)).encode(errors="surrogatepass"))


def folders(count: int, seed: int, bases: Sequence[Path], folder: Path) -> Tally:
    """Damage copies of folders, and answer report, compare and --resume on them."""
    tally, numbers = Tally(), iter(range(10**9))

    def take(drawn: tuple[Path, list[tuple[str, str, int, int, Any]]]) -> None:
        base, changes = drawn
        number = next(numbers)
        spoilt = shutil.copytree(base, folder / f"spoilt{number}")
        for change in changes:
            damage(spoilt, change)
        commands = [["report", "--json", str(spoilt)], ["compare", str(base), str(spoilt)]]
        commands += [["--resume", str(spoilt), "--dry-run"]]
        if number % 20 == 0:
            commands[:0] = [
                ["report", "--figures", "none", "--out", str(folder / "report"), str(spoilt)]
            ]
        answers = {}
        for argv in commands:
            answers[argv[0]] = code, printed = answer(argv)
            tally.take([*argv, *map(str, changes)], code, printed)
        (code, refusal), resumed = answers["report"], answers["--resume"][0]
        if code == 2 and resumed == 0 and REFUSED.search(refusal) and OF_RUN not in refusal:
            tally.failures.append(
                f"--resume accepts a folder that report refuses, {changes}: {refusal[-1000:]}"
            )
        shutil.rmtree(spoilt)

    generate(st.tuples(st.sampled_from(list(bases)), damages()), count, seed, take)
    return tally


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lines", type=int, default=2000, help="command lines (default: 2,000)")
    options.add_argument(
        "--folders", type=int, default=2000, help="damaged folders (default: 2,000)"
    )
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        measured = measured_run(folder / "measured")
        bases = [path.parent for path in COMMITTED] + [measured]
        tallies = {
            "command lines": lines(chosen.lines, chosen.seed, folder),
            "damaged folders": folders(chosen.folders, chosen.seed, bases, folder),
        }
        for name, tally in tallies.items():
            failed |= bool(tally.failures)
            codes = ", ".join(f"{code}: {count}" for code, count in sorted(tally.codes.items()))
            print(
                f"{name}: {tally.codes.total()} answers (exit codes {codes}), "
                f"{len(tally.failures)} wrong"
            )
            for failure in tally.failures[:10]:
                print(failure)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
