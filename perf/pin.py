"""Compare what two checkouts report of the same results: numbers, statuses, verdicts and exit codes.

    python perf/pin.py --before CHECKOUT [--after .] [--work FOLDER] [--cases REGEX] [--allow FILE] [--prose]

The inputs are the runs committed in CHECKOUT's results/ and those that perf/pin_inputs.py makes by CHECKOUT's code.
With ``--work`` they are kept, and so is what a clean CHECKOUT reports of them. Each side runs in its own process with
its own code, through the command line and ``bench.report.load``.

Compared are: the JSON of ``report`` and ``compare``, the formats of other tools, the typed frames, the data and figures
of report.html, the CSVs of the matrices, the tables of report.md, details.md and ``compare --markdown`` reduced to
numbers and words of verdicts and statuses, the names of the files, and the exit codes, with ``--fail-over``, too.
Sentences are free; ``--prose`` compares the numbers and verdicts in them.

A line of ``--allow`` is ``REGEX # reason``; it is searched in ``key | case | row | old → new``. A line
``s/REGEX/NEW/ # reason`` renames the keys and rows of the old side first. A regex that matches nothing is listed.
"""

from __future__ import annotations

import argparse
import collections
import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""Values by ``key | row``."""
PROSE = {
    *("cautions", "warnings", "remarks", "summary", "failures", "detail", "limit", "text", "sentence", "sentences"),
    *("schema_version", "ampmeter_version", "reason", "why", "note", "notes", "title", "about", "help"),
}
"""Keys of the JSON documents whose words are free. Of a list its length is compared."""
IDENTITY = (
    *("run", "suite", "workload", "parameters", "techniques", "data", "where", "placement", "batch_size", "precision"),
    *("against", "phase", "trial", "replicate", "seed", "epoch", "kind", "layer", "name", "step", "namespace", "key"),
    *("basis", "setup", "over_setup", "over_batch_size"),
)
"""Keys that tell the rows of a list or of a CSV apart."""
ROW_HEADERS = re.compile(
    r"model|devices?|suite|recipe.*|precision|batch.*|ablation step|setup|run|placement|seed|epoch|phase|workload|value"
    r"|layer|kind|trial|scaling|techniques|parameters",
    re.IGNORECASE,
)
"""Headers of the columns that tell the rows of a table apart."""
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*[A-Za-z_])")
WORD = re.compile(
    r"\b[A-Z]{4,}(?:-[A-Z]+)?\b|\b(?:ok|unconverged|oom|unsupported|nonfinite|invalid|timeout|failed|yes|no|baseline)\b"
    r"|\b(?:amp-|te-|mx|nv)?(?:fp|bf|tf)\d+(?:-\w+)*\b|–"
    r"|\b(?:not (?:worse|trained|compared|shown|measured)|undecided)\b"
)


def tokens(text: str) -> list[Any]:
    """Return the numbers and the words of verdicts and statuses in a text, in order."""
    places = [(match.start(), number(match[0])) for match in NUMBER.finditer(text)]
    places += [(match.start(), match[0]) for match in WORD.finditer(text)]
    return [value for _, value in sorted(places, key=lambda place: place[0])]


def number(text: str) -> Any:
    """Return the number that a text is, or else the text."""
    try:
        return float(text.replace("−", "-").replace(",", ""))
    except ValueError:
        return text


def walk(value: Any, key: str, row: str, facts: Facts) -> None:
    """Add the leaves of a JSON document, rows of lists by what identifies them."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in PROSE:
                walk(part, f"{key}.{name}", row, facts)
            elif isinstance(part, list):
                facts[f"{key}.len({name}) | {row}"] = len(part)
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        seen: collections.Counter[str] = collections.Counter()
        for part in value:
            names = [name for name in IDENTITY if isinstance(part.get(name), str | int | float) and part[name] != ""]
            label = "/".join(str(part[name]) for name in names)
            seen[label] += 1
            walk(part, f"{key}[]", f"{row} {label}" + (f" #{seen[label]}" if seen[label] > 1 else ""), facts)
        facts[f"{key}.len | {row}"] = len(value)
    else:
        facts[f"{key} | {row}"] = tokens(value) if isinstance(value, str) and value.count(" ") > 3 else value


def tables(text: str, kind: str, facts: Facts) -> None:
    """Add the cells of the tables of a markdown page, and the figures of its sentences as ``kind prose``."""
    heading, prose = "", collections.defaultdict[str, list[Any]](list)
    counts: collections.Counter[str] = collections.Counter()
    for is_table, group in itertools.groupby(text.split("\n"), lambda line: line.startswith("|")):
        block = list(group)
        if is_table and len(block) > 1 and set(block[1]) <= set("|-: "):
            counts[heading] += 1
            name = f"{kind} {heading}" + (f" ({counts[heading]})" if counts[heading] > 1 else "")
            table([cells(line) for line in (block[0], *block[2:])], name, facts)
            continue
        for line in block:
            heading = line.lstrip("# ") if line.startswith("#") else heading
            prose[heading] += tokens(line)
    facts |= {f"{kind} prose | {heading}": figures for heading, figures in prose.items()}


def cells(line: str) -> list[str]:
    """Return the cells of a line of a markdown table, without markup."""
    return [re.sub(r"[*`]|\\", "", cell).strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(rows: list[list[str]], name: str, facts: Facts) -> None:
    """Add the cells of a table; a blank cell that identifies a row repeats the one above."""
    labels, last = collections.Counter[str](), dict[int, str]()
    keys = [at for at, header in enumerate(rows[0]) if ROW_HEADERS.fullmatch(header)] or [0]
    for row in rows[1:]:
        last |= {at: row[at] for at in keys if row[at]}
        label = " · ".join(last.get(at, "") for at in keys)
        labels[label] += 1
        label += f" #{labels[label]}" if labels[label] > 1 else ""
        columns = [
            (header, cell) for at, (header, cell) in enumerate(zip(rows[0], row, strict=False)) if at not in keys
        ]
        facts |= {f"{name}.{header} | {label}": tokens(cell) for header, cell in columns}
    facts[f"{name}.rows | "] = len(rows) - 1


# One side, in its own process with its own code


def call(words: Sequence[str]) -> tuple[int | str, str]:
    """Run a command of the checkout in this process; return its exit code, or its exception, and what it printed."""
    import run_bench  # the checkout's

    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = run_bench.main([str(word) for word in words])
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 2
        except Exception as error:  # a defect of either side, which the other may not have
            return f"{type(error).__name__}: {error}", out.getvalue()
    if code > 128:  # a signal stopped it
        raise SystemExit(code)
    return code, out.getvalue()


def report_facts(name: str, folders: list[str]) -> Facts:
    """Return the facts of a report over some folders."""
    import bench.report

    facts: Facts = {}
    facts["exit | report --json"], text = call(["report", *folders, "--json"])
    if facts["exit | report --json"] == 0:
        walk(json.loads(text), "json", "", facts)
        results = bench.report.load(*folders)
        for frame in ("summary", "trials", "epochs", "blocks", "numerics"):
            rows = getattr(results, frame)
            facts[f"frames.{frame} len | "] = len(rows)
            for column in rows.columns:
                values = rows[column].astype(object)
                facts[f"frames.{frame}.{column} | "] = [str(rows[column].dtype), *values.where(values.notna(), None)]
    if not name.endswith(("-epyc", "-parity", "fleet")):  # there they are the same again, at length
        export_facts(folders, facts)
    if any(path.stat().st_size > 200 for folder in folders for path in Path(folder).glob("explain.csv")):
        facts["exit | explain"], text = call(["explain", *folders])
        facts["terminal prose | explain"] = tokens(text)
    with tempfile.TemporaryDirectory() as out:
        facts["exit | report"], text = call(["report", *folders, "--out", out, "--figures", "none"])
        facts["terminal prose | report"] = tokens(text.replace(out, ""))
        page_facts(Path(out), facts)
    return facts


def export_facts(folders: list[str], facts: Facts) -> None:
    """Add what is exported for other tools."""
    for tool in ("github-action-benchmark", "openmetrics", "mllog"):
        facts[f"exit | report --export {tool}"], text = call(["report", *folders, "--export", tool])
        if tool == "openmetrics":
            rows = [line.rpartition(" ")[::2] for line in text.split("\n") if line and line[0] != "#"]
            facts |= {f"openmetrics.{key.partition('{')[0]} | {key}": number(value) for key, value in rows}
        elif facts[f"exit | report --export {tool}"] == 0:
            lines = [line.partition(" ")[2] for line in text.split("\n") if line.startswith(":::")]
            walk([json.loads(line) for line in lines] if tool == "mllog" else json.loads(text), tool, "", facts)


def page_facts(out: Path, facts: Facts) -> None:
    """Add the files of a report."""
    files = sorted(out.glob("*"))
    facts["files | "] = [path.name for path in files]
    for path in files:
        text = path.read_text() if path.suffix in (".md", ".csv", ".html") else ""
        if path.suffix == ".md":
            tables(text, path.name, facts)
        elif path.suffix == ".csv":
            rows = [{name: number(cell) for name, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]
            walk(rows, re.sub("-.*", "", path.name), path.name, facts)
        elif match := re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL):
            walk(json.loads(match[1]), "html", "", facts)
            for at, drawing in enumerate(re.findall(r"<svg.*?</svg>", text, re.DOTALL)):
                facts[f"html figure | {at}"] = tokens(drawing)


def compare_facts(old: str, new: str) -> Facts:
    """Return the facts of a comparison of runs."""
    facts: Facts = {}
    facts["exit | compare"], text = call(["compare", old, new, "--markdown"])
    tables(text, "compare.md", facts)
    for share in ("0.1%", "3%", "20%"):
        facts[f"exit | compare --fail-over {share}"], text = call(["compare", old, new, "--json", "--fail-over", share])
        if text.startswith("{"):
            walk(json.loads(text), f"compare.json {share}", "", facts)
    return facts


def child(cases: dict[str, list[str]]) -> dict[str, Facts]:
    """Return the facts of every case. A case of two folders named ``compare …`` is a comparison."""
    facts = {}
    for name, folders in cases.items():
        start = time.perf_counter()
        facts[name] = compare_facts(*folders) if name.startswith("compare") else report_facts(name, folders)
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return facts


# Both sides


def start(checkout: Path, script: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a script with a checkout's code."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen([sys.executable, script, *words], cwd=checkout, env=environment, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> bytes:
    """Return what a script printed."""
    printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a side failed: see above")
    return printed


def collect(before: Path, after: Path, work: Path, pattern: str) -> list[dict[str, Facts]]:
    """Return both sides' facts; those of a clean old checkout from the work folder where they are there."""
    here = Path(__file__).resolve()
    cases = json.loads(finish(start(before, here.with_name("pin_inputs.py"), str(work))))
    words = json.dumps({name: folders for name, folders in cases.items() if re.search(pattern, name)})
    head, changed = (
        subprocess.run(["git", "-C", before, *command], capture_output=True, text=True, check=True).stdout
        for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    )
    cache = work / f"before-{hashlib.sha256((head + words + here.read_text()).encode()).hexdigest()[:16]}.json.gz"
    new = start(after, here, "--child", words)
    if changed or not cache.exists():
        old = finish(start(before, here, "--child", words))
        if not changed:
            cache.write_bytes(gzip.compress(old, 1))
    else:
        old = gzip.decompress(cache.read_bytes())
    return [json.loads(old), json.loads(finish(new))]


def equal(old: Any, new: Any, tolerance: float) -> bool:
    """Say whether two values are the same, numbers within the relative tolerance."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(equal(a, b, tolerance) for a, b in zip(old, new, strict=True))
    if any(isinstance(side, bool) or not isinstance(side, int | float) for side in (old, new)):
        return bool(old == new)
    return math.isclose(old, new, rel_tol=tolerance, abs_tol=1e-15) or (math.isnan(old) and math.isnan(new))


def shown(old: Any, new: Any, tolerance: float) -> str:
    """Write both values, of lists the first elements that differ."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        at = [at for at, pair in enumerate(zip(old, new, strict=True)) if not equal(*pair, tolerance)]
        return f"[{at[0]}] {old[at[0]]} → {new[at[0]]}" + (f" ({len(at)} of {len(old)} differ)" if len(at) > 1 else "")
    return " → ".join(str(side)[:100] for side in (old, new))


def differences(
    sides: list[dict[str, Facts]], renames: list[list[str]], tolerance: float, prose: bool
) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, case, row and the change of each fact that differs."""
    for case in sides[0]:
        old, new = (facts[case] for facts in sides)
        for pattern, replacement in renames:
            old = {re.sub(pattern, replacement, name): value for name, value in old.items()}
        for name in dict.fromkeys([*old, *new]):
            key, _, row = name.partition(" | ")
            before, after = (facts.get(name, "absent") for facts in (old, new))
            if (prose or not key.endswith("prose")) and not equal(before, after, tolerance):
                yield key, case, row.strip(), shown(before, after, tolerance)


def main() -> int:
    """Print the differences; return 1 if there are any that are not allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--after", type=Path, default=Path(), metavar="CHECKOUT", help="(default: here)")
    parser.add_argument("--work", type=Path, help="where the inputs are kept (default: a temporary folder)")
    parser.add_argument("--cases", default="", help="a regex: only the cases whose names it is found in")
    parser.add_argument("--tolerance", type=float, default=1e-9, help="relative, of numbers (default: 1e-9)")
    parser.add_argument("--allow", type=Path, metavar="FILE")
    parser.add_argument("--prose", action="store_true", help="numbers and verdicts in sentences and on terminals, too")
    parser.add_argument("--examples", type=int, default=3, help="shown of each key (default: 3)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(json.loads(options.child)), default=str))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        sides = collect(options.before.resolve(), options.after.resolve(), work, options.cases)
    lines = options.allow.read_text().split("\n") if options.allow else []
    rules = {pattern.strip(): reason for pattern, mark, reason in (line.rpartition(" # ") for line in lines) if mark}
    renames = [pattern.split("/")[1:3] for pattern in rules if pattern.startswith("s/")]
    groups: dict[str, dict[str, list[str]]] = {"": {}}
    groups |= {pattern: {} for pattern in rules if not pattern.startswith("s/")}
    for key, case, row, change in differences(sides, renames, options.tolerance, options.prose):
        line = f"{key} | {case} | {row} | {change}"
        pattern = next((pattern for pattern in groups if pattern and re.search(pattern, line)), "")
        groups[pattern].setdefault(key, []).append(f"{case} | {row} | {change}")
    for pattern, keys in reversed(groups.items()):
        title = f"Allowed by {pattern!r}: {rules[pattern]}" if pattern else "Differences"
        print(f"\n## {title} ({sum(map(len, keys.values()))})\n")
        for key, examples in keys.items():
            print(f"{key}: {len(examples)}", *examples[: options.examples], sep="\n    ")
    count = sum(map(len, groups[""].values()))
    print(f"\n{len(sides[0])} cases, {sum(map(len, sides[0].values()))} values, {count} differences")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
