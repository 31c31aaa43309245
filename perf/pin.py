#!/usr/bin/env python3
"""Compare what two checkouts report of the same results: numbers, statuses, verdicts and exit codes.

    python perf/pin.py --before CHECKOUT [--after .] [--work FOLDER] [--cases REGEX] [--allow FILE] [--prose]

The inputs are the runs committed in CHECKOUT's results/ and runs that CHECKOUT's own code makes: the synthetic fleet,
and small runs on this CPU with a ladder, a sweep, two placements and several seeds. With ``--work`` they are kept, and
so is what a clean CHECKOUT reports of them. Each side runs in its own process with its own code, through the command
line and ``bench.report.load``.

Compared are: the JSON of ``report`` and ``compare``, the formats of other tools, the typed frames, the data of
report.html, the CSVs of the matrices, the tables of report.md, details.md and ``compare --markdown`` reduced to numbers
and words of verdicts and statuses, the names of the files, and the exit codes of each command, with ``--fail-over``,
too. Sentences are free; ``--prose`` compares the numbers and verdicts in them.

Each line of ``--allow`` is ``REGEX # reason``, and is searched in ``kind | key | case | row | old → new``. A line
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
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""Values by ``kind | key | row``."""
RUNS = {
    "ladder": "--suite mlp --set width=64 --batch-sizes 32 --gpus cpu --quick --ladder",
    "sweep": "--suite mlp --sweep width=64,96 --set depth=2 --batch-sizes 32,64 --gpus cpu --quick",
    "phases": "--suite mlp --set width=64 --batch-sizes 32 --gpus cpu --quick --time-budget 2s "
    "--phases memory,floor,speed,numerics,inference,explain",
    "seeds": "--suite digits --gpus cpu,cpu+cpu --batch-sizes 32 --quick --time-budget 3s --epochs 2 --seeds 0,1,2,3,4 "
    "--precisions fp32,amp-bf16",
}
"""Real runs on this CPU, by name."""
PROSE = {
    *("cautions", "warnings", "remarks", "summary", "failures", "detail", "limit", "text", "sentence", "sentences"),
    *("schema_version", "ampmeter_version", "reason", "why", "note", "notes", "title", "about", "help"),
}
"""Keys of the JSON documents whose words are free. Of a list its length is compared."""
IDENTITY = (
    *("run", "suite", "workload", "parameters", "techniques", "data", "where", "device", "placement", "batch_size"),
    *("precision", "against", "phase", "trial", "replicate", "seed", "epoch", "layer", "figure", "name", "step"),
    *("namespace", "key", "basis", "setup", "over_setup", "over_batch_size"),
)
"""Keys that tell the rows of a list or of a CSV apart."""
ROW_HEADERS = re.compile(
    r"model|device|devices|suite|recipe.*|precision|batch.*|ablation step|setup|run|placement|seed|epoch|phase|"
    r"workload|value|layer|kind|figure|trial|techniques|parameters",
    re.IGNORECASE,
)
"""Headers of the columns that tell the rows of a table apart."""
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*[A-Za-z_])")
WORD = re.compile(
    r"\b[A-Z]{4,}(?:-[A-Z]+)?\b|\b(?:ok|unconverged|oom|unsupported|nonfinite|invalid|timeout|failed|yes|no|baseline)\b"
    r"|\b(?:amp-|te-|mx|nv)?(?:fp|bf|tf)\d+(?:-\w+)*\b|\b(?:not (?:worse|trained|compared|shown|measured)|undecided)\b|–"
)


def tokens(text: str) -> list[Any]:
    """Return the numbers and the words of verdicts and statuses in a text, in order."""
    found = [(match.start(), _number(match[0])) for match in NUMBER.finditer(text)]
    found += [(match.start(), match[0]) for match in WORD.finditer(text)]
    return [value for _, value in sorted(found, key=lambda one: one[0])]


def _number(text: str) -> Any:
    try:
        return float(text.replace("−", "-").replace(",", ""))
    except ValueError:
        return text


# Documents as facts


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
            names = [n for n in IDENTITY if isinstance(part, dict) and isinstance(part.get(n), str | int | float)]
            own = "/".join(str(part[name]) for name in names if part[name] != "")
            seen[own] += 1
            walk(part, f"{key}[]", f"{row} {own}" + (f" #{seen[own]}" if seen[own] > 1 else ""), facts)
        facts[f"{key}.len | {row}"] = len(value)
    else:
        facts[f"{key} | {row}"] = tokens(value) if isinstance(value, str) and value.count(" ") > 3 else value


def tables(text: str, kind: str, facts: Facts) -> None:
    """Add the cells of the tables of a markdown page, and the figures of its sentences as ``kind prose``."""
    heading, prose, lines = "", collections.defaultdict[str, list[Any]](list), text.split("\n")
    numbers: collections.Counter[str] = collections.Counter()
    for is_table, group in itertools.groupby(lines, lambda line: line.startswith("|")):
        block = list(group)
        if is_table and len(block) > 1 and set(block[1]) <= set("|-: "):
            numbers[heading] += 1
            name = f"{kind} {heading}" + (f" ({numbers[heading]})" if numbers[heading] > 1 else "")
            _table([_cells(line) for line in (block[0], *block[2:])], name, facts)
            continue
        for line in block:
            if line.startswith("#"):
                heading = line.lstrip("# ")
            prose[heading] += tokens(line)
    for heading, found in prose.items():
        facts[f"{kind} prose | {heading}"] = found


def _cells(line: str) -> list[str]:
    return [re.sub(r"[*`]|\\", "", cell).strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _table(rows: list[list[str]], name: str, facts: Facts) -> None:
    headers, labels, last = rows[0], collections.Counter[str](), dict[int, str]()
    keys = [at for at, header in enumerate(headers) if ROW_HEADERS.fullmatch(header)] or [0]
    for row in rows[1:]:
        last |= {at: row[at] for at in keys if row[at]}
        label = " · ".join(last.get(at, "") for at in keys)
        labels[label] += 1
        label += f" #{labels[label]}" if labels[label] > 1 else ""
        for at, (header, cell) in enumerate(zip(headers, row, strict=False)):
            if at not in keys:
                facts[f"{name}.{header} | {label}"] = tokens(cell)
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
    exported = not name.endswith(("-epyc", "-parity", "all of fleet", "all of results"))  # the same again, at length
    for tool in ("github-action-benchmark", "openmetrics", "mllog") if exported else ():
        facts[f"exit | report --export {tool}"], text = call(["report", *folders, "--export", tool])
        if tool == "openmetrics":
            rows = [line.rpartition(" ")[::2] for line in text.split("\n") if line and line[0] != "#"]
            facts |= {f"openmetrics.{key.partition('{')[0]} | {key}": _number(value) for key, value in rows}
        elif facts[f"exit | report --export {tool}"] == 0:
            lines = [line.partition(" ")[2] for line in text.split("\n") if line.startswith(":::")]
            walk([json.loads(line) for line in lines] if tool == "mllog" else json.loads(text), tool, "", facts)
    with tempfile.TemporaryDirectory() as temporary:
        words = ["report", *folders, "--out", temporary, "--figures", os.environ.get("PIN_FIGURES", "none")]
        facts["exit | report"], text = call(words)
        facts["terminal prose | report"] = tokens(text.replace(temporary, ""))
        files = sorted(Path(temporary).glob("*"))
        facts["files | "] = [path.name for path in files]
        for path in files:
            text = path.read_text() if path.suffix in (".md", ".csv", ".html") else ""
            if path.suffix == ".md":
                tables(text, path.name, facts)
            elif path.suffix == ".csv":
                walk(list(csv.DictReader(io.StringIO(text))), re.sub("-.*", "", path.name), path.name, facts)
            elif match := re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL):
                walk(json.loads(match[1]), "html", "", facts)
                for at, drawing in enumerate(re.findall(r"<svg.*?</svg>", text, re.DOTALL)):
                    facts[f"html figure | {at}"] = tokens(drawing)
    if any(path.stat().st_size > 200 for folder in folders for path in Path(folder).glob("explain.csv")):
        facts["exit | explain"], text = call(["explain", *folders])
        facts["terminal prose | explain"] = tokens(text)
    return facts


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
    found = {}
    for name, folders in cases.items():
        start = time.perf_counter()
        found[name] = compare_facts(*folders) if name.startswith("compare") else report_facts(name, folders)
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return found


def side(checkout: Path, cases: dict[str, list[str]]) -> subprocess.Popen[bytes]:
    """Start a checkout on the cases."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "MPLCONFIGDIR": tempfile.gettempdir()}
    command = [sys.executable, __file__, "--child", json.dumps(cases)]
    return subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.PIPE)


# Inputs


def make(home: Path) -> None:
    """Write runs with every status, several placements, a swept parameter and ablations, by the old checkout's tests.

    The two runs of ``new`` ask the same questions as those of ``old``: they are slower, take more memory and energy, are
    less accurate, and fp32 fits where it did not.
    """
    from bench.results.records import Block, Energy, TrialResult
    from bench.results.store import Store
    from bench.spec.trial import SuiteRef
    from perf.synthetic_run import as_timed
    from tests.report.ablations import STEPS_MS, apart, whole
    from tests.report.builders import GPU, RunBuilder, timed

    noise = random.Random(1)
    gains = {"fp32": 1.0, "amp-fp16": 1.8, "amp-bf16": 2.0}

    def speed(
        run: Any, batch: int, names: Sequence[str], slower: float = 1.0, processes: int = 4, off: int = -1, **more: Any
    ) -> None:
        """Add processes that time arms together; of process ``off`` amp-bf16 is disturbed."""
        for replicate in range(processes):
            trial, results, blocks = run.trial("speed", names, batch, replicate=replicate), [], []
            for name in names:
                gain = gains[name] * noise.gauss(1, 0.01) * (0.6 if off == replicate and name == "amp-bf16" else 1)
                ends = (
                    dict.fromkeys(("speedup", "speedup_low", "speedup_high"), gain)
                    if name != "fp32" == names[0]
                    else {}
                )
                figures = timed(1, batch, rounds=9, paired=names[0] == "fp32", **ends)
                status = more.get("status", "ok") if name != "fp32" else "ok"
                results.append(TrialResult(precision=name, status=status, speed=figures))
                place = {"trial": trial.id, "precision": name, "steps": 3, "start_s": 0.0}
                blocks += [
                    Block(
                        round=at // 2,
                        position=at % 2,
                        time_ms=(6 + batch / 3) * slower / gain * noise.gauss(1, 0.004),
                        **place,
                    )
                    for at in range(18)
                ]
            with Store(run.folder) as store:
                store.add(blocks)
            run.add(trial, *as_timed(results, blocks, batch))

    for name, slower in itertools.product(("edges-1", "edges-2"), (1.0, 1.06)):
        run, amp = RunBuilder(home / ("old" if slower == 1 else "new") / name), list(gains)[1:]
        speed(run, 32, list(gains), slower, processes=6, off=2)
        speed(run, 64, list(gains), slower)
        speed(run, 128, list(gains) if slower > 1 else amp, slower)
        speed(run, 256, ["amp-bf16"], slower)
        speed(run, 48, ["fp32", "amp-fp16"], slower, status="unconverged")
        speed(run, 16, ["fp32", "amp-bf16"], slower, processes=1)
        speed(run, 24, ["fp32", "amp-bf16"], slower, processes=2, status="invalid")
        lost = [("fp32", "oom", 256), ("amp-fp16", "timeout", 256), ("fp8-rowwise", "unsupported", 64)]
        lost += [("amp-bf16", "failed", 512), ("fp32", "oom", 512), ("fp16", "nonfinite", 64)]
        lost += [("fp32", "oom", 128)] if slower == 1 else []
        for precision, status, batch in lost:
            run.lost("speed", precision, status, "so it was", batch=batch).lost(
                "memory", precision, status, batch=batch
            )
        for batch, precision in itertools.product((32, 64, 128), gains):
            if (precision, "oom", batch) not in lost:
                run.memory(precision, batch * slower**2 / gains[precision] ** 0.5, batch=batch)
                joules = batch * slower / gains[precision] * noise.gauss(1, 0.01)
                energy = Energy(energy_source="counter", energy_j_per_step=joules)
                result = TrialResult(precision=precision, status="ok", energy=energy)
                run.add(run.trial("energy", [precision], batch), result)
        for precision, count in (("fp32", 6), ("amp-fp16", 6), ("amp-bf16", 5)):
            accuracies = [94 - 30 * (slower - 1) * (precision != "fp32") + noise.gauss(0, 0.2) for _ in range(count)]
            run.train(
                precision, accuracies, batch=64, epoch_s=[3 * slower * noise.gauss(1, 0.01) for _ in range(count)]
            )
        run.diverged("bf16", seed=1, batch=64)
    run = RunBuilder(home / "placements")
    for placement, batches, slower in (("0", (32, 64), 1.0), ("1", (64,), 1.1), ("0+1", (64, 128), 0.6)):
        name = f"2 × {GPU.name}" if "+" in placement else GPU.name
        run.device = replace(GPU, placement=placement, name=name, names=(GPU.name,))
        for batch in batches:
            speed(run, batch, list(gains), slower)
            for precision in gains:
                run.memory(precision, batch / gains[precision], batch=batch)
        run.train("fp32", [90.0, 90.4, 90.1], batch=64).train("amp-bf16", [90.1, 90.3, 89.9], batch=64)
    run = RunBuilder(home / "swept")
    for width in (64, 65, 128):
        run.suite = SuiteRef(name="mlp", parameters=(("width", width),))
        speed(run, 64, list(gains), width / 64)
        run.memory("fp32", width).memory("amp-bf16", width / 2)
    whole(RunBuilder(home / "ablation"))
    apart(
        RunBuilder(home / "ablation-apart"), {name: [step, step * 1.02, step * 0.99] for name, step in STEPS_MS.items()}
    )


def inputs(before: Path, work: Path) -> dict[str, list[str]]:
    """Make the runs that are not there yet, and return the folders of each case."""
    fleet, edges = work / "fleet", work / "made"
    makers = {
        fleet: [str(before / "perf" / "synthetic_fleet.py")],
        edges: [str(Path(__file__).resolve()), "--make"],
        **{work / name: [str(before / "run_bench.py"), *words.split(), "--out"] for name, words in RUNS.items()},
    }
    for folder, words in makers.items():
        if not folder.exists():
            making = folder.with_name(f"making-{folder.name}")
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(before)}
            done = subprocess.run([sys.executable, *words, str(making)], cwd=work, env=environment, check=False)
            if done.returncode not in (0, 1) or not making.exists():
                raise SystemExit(f"making {folder.name} failed")
            making.rename(folder)
    committed = [path.parent for path in sorted((before / "results").glob("*/run.json"))]
    real, one, new = [work / name for name in RUNS], edges / "old" / "edges-1", edges / "new" / "edges-1"
    runs = [*committed, *(path for path in sorted(edges.iterdir()) if path.name != "new"), *real, one]
    runs += [fleet / name for name in ("fleet", "cloud-t4", "h100-one")]
    cases = {f"report {path.name}": [str(path)] for path in runs}
    cases |= {"report all of fleet": [str(fleet)], "report all of results": [str(path) for path in committed]}
    pairs = [(fleet / "h100-one", fleet / "h100-new"), (fleet / "cloud-a100", fleet / "fleet")]
    pairs += [(one, new), (new, one), (edges / "old", edges / "new"), *((run, run) for run in (*committed, *real))]
    return cases | {
        f"compare {old.parent.name}/{old.name} {new.parent.name}/{new.name}": [str(old), str(new)] for old, new in pairs
    }


def collect(before: Path, after: Path, work: Path, cases: dict[str, list[str]]) -> list[dict[str, Facts]]:
    """Return both sides' facts; those of a clean old checkout from the work folder where they are there."""
    git = ["git", "-C", str(before)]
    head, changed = (
        subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
        for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    )
    digest = hashlib.sha256((head + json.dumps(cases) + Path(__file__).read_text()).encode()).hexdigest()[:16]
    cache = work / f"before-{digest}.json.gz"
    children = [None if cache.exists() and not changed else side(before, cases), side(after, cases)]
    texts = [gzip.decompress(cache.read_bytes()) if one is None else one.communicate()[0] for one in children]
    if any(one is not None and one.returncode for one in children):
        raise SystemExit("a side failed: see above")
    if children[0] is not None and not changed:
        cache.write_bytes(gzip.compress(texts[0], 1))
    return [json.loads(text) for text in texts]


# Differences


def equal(old: Any, new: Any, tolerance: float) -> bool:
    """Say whether two values are the same, numbers within the relative tolerance."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(equal(a, b, tolerance) for a, b in zip(old, new, strict=True))
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in (old, new)):
        return bool(old == new)
    return math.isclose(old, new, rel_tol=tolerance, abs_tol=1e-15) or (math.isnan(old) and math.isnan(new))


def shown(old: Any, new: Any, tolerance: float) -> str:
    """Write both values, of lists the first elements that differ."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) > 1:
        at = [at for at, (a, b) in enumerate(zip(old, new, strict=True)) if not equal(a, b, tolerance)]
        return f"[{at[0]}] {old[at[0]]} → {new[at[0]]}" + (f" ({len(at)} of {len(old)} differ)" if len(at) > 1 else "")
    return " → ".join(str(one)[:100] for one in (old, new))


def differences(
    sides: list[dict[str, Facts]], renames: list[tuple[str, str]], tolerance: float, prose: bool
) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, case, row and the change of each fact that differs."""
    for case in sides[0]:
        old, new = (facts[case] for facts in sides)
        for pattern, replacement in renames:
            old = {re.sub(pattern, replacement, name): value for name, value in old.items()}
        for name in dict.fromkeys([*old, *new]):
            key, _, row = name.partition(" | ")
            a, b = (facts.get(name, "absent") for facts in (old, new))
            if (prose or not key.endswith("prose")) and not equal(a, b, tolerance):
                yield key, case, row, shown(a, b, tolerance)


def allowed(path: Path | None) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the renames and the reasons by regex of a file of what is allowed."""
    lines = [line.rpartition(" # ") for line in path.read_text().split("\n") if " # " in line] if path else []
    renames = [(line[0].split("/")[1], line[0].split("/")[2]) for line in lines if line[0].startswith("s/")]
    return renames, {pattern.strip(): reason for pattern, _, reason in lines if not pattern.startswith(("s/", "#"))}


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
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        sys.path[0] = os.environ["PYTHONPATH"]
        make(options.make)
        return 0
    if options.child:
        sys.path[0] = str(Path.cwd())
        found = child(json.loads(options.child))
        print(json.dumps(found, default=str))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        cases = inputs(options.before.resolve(), work)
        cases = {name: folders for name, folders in cases.items() if re.search(options.cases, name)}
        sides = collect(options.before.resolve(), options.after.resolve(), work, cases)
    renames, reasons = allowed(options.allow)
    groups: dict[str, dict[str, list[str]]] = {}
    for key, case, row, change in differences(sides, renames, options.tolerance, options.prose):
        line = f"{key} | {case} | {row} | {change}"
        reason = next((pattern for pattern in reasons if re.search(pattern, line)), "")
        groups.setdefault(reason, {}).setdefault(key, []).append(f"{case} | {row.strip()} | {change}")
    for pattern in sorted(groups, reverse=True):
        total = sum(map(len, groups[pattern].values()))
        print(f"\n## {f'Allowed by {pattern!r}: {reasons[pattern]}' if pattern else 'Differences'} ({total})\n")
        for key, lines in groups[pattern].items():
            print(f"{key}: {len(lines)}", *lines[: options.examples], sep="\n    ")
    for pattern in reasons.keys() - groups.keys():
        print(f"Nothing matches {pattern!r}: {reasons[pattern]}")
    count = sum(map(len, groups.get("", {}).values()))
    print(f"\n{len(cases)} cases, {sum(map(len, sides[0].values()))} values, {count} differences")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
