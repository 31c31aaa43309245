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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
# Values that fit some option.
WORDS = ["mlp", "digits", "mlp,digits", "cpu", "0", "0,1", "0+1", "cpu+cpu", "fp32,amp-bf16"]
WORDS += ["amp-fp16:init_scale=2", "64", "64,max", "max", "1%", "150%", "10s", "memory,speed"]
WORDS += ["train", "width=8", "width=8,16", "synthetic", "ray", "ray://h:1", "V100", "compile"]
WORDS += ["channels-last,grad-accumulation=2", "94%", "2", "0,1,2,3,4", "1.0"]
# Values that fit no option, or few.
ODD = ["", " ", ",", ",,", "=", "-", "--", "-1", "0x10", "1e9", "1e400", "nan", "inf", "９", "٣"]
ODD += ["%", "100%%", "a=b=c", "\x00", "\x1b[2J", "\ud800", "\u202e", "é" * 300, "x" * 5000]
ODD += ["/dev/null", "/etc/passwd", "/", "~", "None", "[]", "{}", "'", '"', "`id`", "$(id)", "%s"]
ODD += ["{0}", "../x", "no/such/file.py", "mlp,", "999999999999999999999"]
CELLS = ["", "nan", "inf", "-inf", "-1", "0", "1e308", "1e400", "abc", "=1+1", "0x10", "１"]
CELLS += ["9" * 200_000, '"', "\x00", "a,b", '"\n"', "[1", '{"a":', "\ud800", "+", "a+b", "fp32"]
CELLS += ["ok", "failed", "train", "2147483648", "yes"]
# Of run.json.
VALUES = [None, True, [], {}, "x", "", 0, -1, 1.5, 1e308, 10**400, -0.0]
VALUES += [[[]], [None], [{}], {"a": 1}, "2026", ["cpu"]]
# Damages to a CSV; the damage of a cell is the most likely.
DAMAGES = ["cut", "flip", "insert", "drop line", "double line", "cell", "cell", "cell"]
DAMAGES += ["drop column", "delete", "folder", "link", "empty"]
CSVS = ["memory.csv", "speed.csv", "train.csv", "blocks.csv", "epochs.csv", "numerics_figures.csv"]
# Damages to run.json.
RUN_DAMAGES = ["json", "json", "json", "drop key", "deep", "flip", "cut", "insert", "delete"]
# A damage: its kind, the file, two places, which count modulo the file's length, and a value.
Damage = tuple[str, str, int, int, Any]


@dataclass(slots=True)
class Tally:
    """Exit codes and failures of one part."""

    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def take(self, argv: Sequence[str], code: object, printed: str) -> None:
        """Count an answer, and keep it as a failure if ``wrong`` objects to it."""
        self.codes[str(code)] += 1
        if why := wrong(argv, code, printed):
            words = [word[:80] for word in argv]
            self.failures.append(f"{words} → {code}, {why}\n{printed[-3000:]}")


def wrong(argv: Sequence[str], code: object, printed: str) -> str:
    """Say what is wrong with an answer; empty if nothing is."""
    if code not in CODES or "Traceback (most recent call last)" in printed:
        return "a traceback, or no documented code"
    if code == 2:
        return "" if SENTENCE.search(printed) else "no sentence at the end"
    if not printed.strip():
        return "nothing printed"
    if argv[0] == "list" and "--json" in argv and not printed.startswith("usage:"):
        try:
            json.loads(printed)
        except ValueError:
            return "no JSON"
    return ""


def probed(_launcher: object, target: str, *arguments: Any, **_limits: float) -> Any:
    """Answer the calls of ``list --gpus`` and ``doctor`` to a process; all probes fail."""
    name = target.rpartition(":")[2]
    if name == "survey":
        return MadeUpMachine().survey(*arguments)
    if name == "look":
        seen = tuple(Seen(device=device, memory_free_bytes=2**30) for device in (GPU, CPU))
        return seen, ""
    raise UsageError("nothing is measured on a made-up machine")


def answer(argv: Sequence[str]) -> tuple[object, str]:
    """Answer a command line in this process; return its exit code and what it prints.

    An exception's code is "traceback".
    """
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

    suite = st.sampled_from(
        [["--suite", "mlp"], ["--suite", "mlp,digits", "--gpus", "cpu"], ["--suite", "digits"], []]
    )
    commands = parser.command_parsers(optional_commands())
    folders = st.lists(st.one_of(st.just("run"), word), max_size=3)
    dry, nothing = st.just(["--dry-run"]), st.just([])
    runs = joined(suite, options(parser.run_parser(), word), dry)
    odd = joined(
        word.filter(lambda text: text != "doctor").map(listed), st.lists(word, max_size=3), dry
    )
    places = {"report": folders, "compare": folders, "doctor": nothing, "list": nothing}
    others = []
    for name, place in places.items():
        others.append(joined(st.just([name]), place, options(commands[name], word)))
    return st.one_of(runs, runs, runs, runs, odd, *others)


def joined(*parts: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    """Return a strategy of the words that strategies draw, one after the other."""
    return st.tuples(*parts).map(lambda drawn: [*itertools.chain(*drawn)])


def listed(word: str) -> list[str]:
    return [word]


def options(
    of: argparse.ArgumentParser, word: st.SearchStrategy[str]
) -> st.SearchStrategy[list[str]]:
    """Return up to six options of a parser, some misspelled, with and without values."""
    flags = st.sampled_from([name for action in of._actions for name in action.option_strings])
    spelled = st.one_of(flags, flags.map(lambda flag: flag[:-1]))
    apart = joined(spelled.map(listed), word.map(listed))
    together = st.tuples(spelled, word).map(lambda pair: ["=".join(pair)])
    one = st.one_of(apart, together, spelled.map(listed))
    return st.lists(one, max_size=6).map(lambda each: [*itertools.chain(*each)])


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
    words = ["--suite", "mlp", "--gpus", "0,cpu", "--precisions", "fp32,amp-bf16"]
    words += ["--data", "synthetic", "--time-budget", "1s", "--out", str(folder)]
    if quick:
        words += ["--phases", "memory,speed", "--batch-sizes", "64"]
    else:
        words += ["--phases", "memory,floor,speed,train,numerics", "--batch-sizes", "64,128"]
        words += ["--epochs", "3", "--seeds", "0,1"]
    with mock.patch("bench.run.reporting.report"):
        code, printed = answer(words)
    if code != 0:
        raise RuntimeError(f"the made-up run ended with {code}:\n{printed}")
    return folder


def damages() -> st.SearchStrategy[list[Damage]]:
    """Return one to three damages."""
    place = st.integers(min_value=0, max_value=2**31)
    kinds, files, cells = map(st.sampled_from, (DAMAGES, CSVS, CELLS))
    csvs = st.tuples(kinds, files, place, place, cells)
    kinds, values = st.sampled_from(RUN_DAMAGES), st.sampled_from(VALUES)
    runs = st.tuples(kinds, st.just("run.json"), place, place, values)
    return st.lists(st.one_of(csvs, csvs, runs), min_size=1, max_size=3)


def damage(folder: Path, change: Damage) -> None:
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
    keys: Iterable[Any] = ()
    if isinstance(value, dict):
        keys = value
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
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
    tally, numbers = Tally(), itertools.count()

    def take(drawn: tuple[Path, list[Damage]]) -> None:
        base, changes = drawn
        number = next(numbers)
        spoilt = shutil.copytree(base, folder / f"spoilt{number}")
        for change in changes:
            damage(spoilt, change)
        commands = [
            ["report", "--json", str(spoilt)],
            ["compare", str(base), str(spoilt)],
            ["--resume", str(spoilt), "--dry-run"],
        ]
        if number % 20 == 0:  # a page takes longer
            page = ["report", "--figures", "none", "--out", str(folder / "report"), str(spoilt)]
            commands.insert(0, page)
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
