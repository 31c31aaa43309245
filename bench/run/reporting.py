"""After a run: its report, its next step, and the ladders that its explanation points at."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from bench import report as reporter
from bench.cli.interruption import Interrupted, tell
from bench.cli.parser import RIGOROUS, Parser, parse_kept, parse_ladder
from bench.report.reading import folders
from bench.results.records import MEASURED
from bench.results.run_json import read_run
from bench.results.store import FAILURES, reason_of
from bench.run.folder import reports_of
from bench.spec.errors import UsageError
from bench.spec.text import print_plain
from bench.spec.trial import Request


def report(
    runs: list[Path],
    out: Path | None = None,
    *,
    published: bool = False,
    figures: Literal["overview", "all", "none"] = "overview",
    tried: bool = False,
) -> None:
    """Write the report of some runs; print its ablations, its answers and where it is.

    Args:
        runs: their folders.
        out: where to write it; None is reports/, under the runs' names.
        published: whether published figures are shown, too.
        figures: of which devices.
        tried: whether what the reasons point at is tried next, so that it is not said how.

    Raises:
        UsageError: it cannot be written.
        Interrupted: while it was printed; it has been said where the report is.
    """
    out = out or report_folder(runs)
    runs = list(dict.fromkeys(run.resolve() for run in runs))
    try:
        contents = reporter.report(runs, out, published=published, figures=figures)
    except OSError as error:
        place = Path(error.filename or out)
        if not (place.is_relative_to(out) or out.is_relative_to(place)):
            raise
        raise UsageError(
            f"The report in '{out}' cannot be written: {error.strerror or error}. Nothing that was measured is lost: "
            f"write it elsewhere with report {shlex.join(map(str, runs))} --out FOLDER."
        ) from error
    written = f"Report: {out / 'report.md'} and {out / 'report.html'}"
    try:
        print_plain(reporter.terminal(contents, out, tried=tried))
    except KeyboardInterrupt as stop:
        tell(written)
        raise Interrupted from stop
    print_plain(written)


def report_run(folder: Path, *, tried: bool = False) -> None:
    """Write the report of a run that has just ended, and print it as ``report`` does."""
    report([folder], folders.report_folder([folder], reports_of(folder)), tried=tried)


def report_folder(runs: list[Path]) -> Path:
    """Return where the report of some runs belongs: reports/, under the runs' names."""
    return folders.report_folder(runs, Path("reports"))


def follow_ups(request: Request, folder: Path) -> Iterator[Request]:
    """Yield what is measured after a run: ladders to the techniques that it points at, and what keeping modules costs.

    One that was started before goes on.
    """
    for again in chain(_ladders(request, folder) if request.tries else (), _kept(request, folder)):
        out = again.out
        yield replace(again, out=None, resume=out) if out and (out / "run.json").exists() else again


def _kept(request: Request, folder: Path) -> Iterator[Request]:
    """Yield the run of each suite in which modules to keep were found, with and without them in fp32."""
    from bench.report.reading.load import load
    from bench.report.tables.layers import kept_names, snippet
    from bench.spec.precisions import parse_precision

    if "layers" not in request.phases:
        return
    for suite, names in kept_names(load([folder]).numerics).items():
        autocast = [name for _, name in names if parse_precision(name).autocast]  # of narrow weights it says too little
        for pattern in dict.fromkeys(name.partition("keep=")[2] for name in autocast):
            print_plain(f"In a training loop of your own, before torch.compile:\n\n{snippet(pattern)}", wrap=False)
        if request.quick:
            continue
        out = folder.with_name(f"{folder.name}-keep-{suite}")
        yield parse_kept(request, suite, [name for pair in names for name in pair], out)
        if (out / "run.json").exists():
            report([folder, out], report_folder([folder]))  # with what keeping them costs


def _ladders(request: Request, folder: Path) -> Iterator[Request]:
    """Yield a ladder for each precision of a run that was explained, to the techniques that the reasons point at."""
    techniques: dict[str, list[str]] = {}
    for explanation in reporter.explain([folder]):
        techniques.setdefault(explanation.precision, []).extend(explanation.techniques)
    for precision, names in techniques.items():
        if not names:
            print_plain(f"Nothing to try for {precision}: no reason points at a technique.")
            continue
        out = folder.with_name(f"{folder.name}-try-{precision}")
        try:
            yield parse_ladder(request, precision, names, out)
        except UsageError as error:
            print_plain(f"{', '.join(dict.fromkeys(names))} cannot be tried for {precision}: {error}")


def _whole(request: dict[str, Any]) -> str:
    """Name the run that measures what a run with ``--quick`` left out."""
    parser = Parser(add_help=False)
    parser.add_argument("--quick", action="store_true")
    for name in ("--out", "--resume"):
        parser.add_argument(name)
    _, words = parser.parse_known_args(request["argv"])
    named = {"other precisions": "precisions", "other batch sizes": "batch_sizes"}
    left = ["further processes", *(what for what, field in named.items() if not request.get(field))]
    left += [] if "train" in request["phases"] or "--phases" in words else ["training"]
    return f"`run_bench.py {shlex.join(words)}` measures what --quick left out: {', '.join(left)}."


def next_step(folder: Path) -> str:
    """Say how to go on after a run."""
    from bench.results.csv_file import counting, read
    from bench.spec.metrics import ACCURACY
    from bench.spec.precisions import BASELINE

    where = shlex.quote(str(folder))
    trials = counting(read(folder / "trials.csv"))
    failed = trials["status"].isin(FAILURES)
    if len(trials) > 1 and failed.all() and trials["detail"].map(reason_of).nunique() == 1:
        return f"all trials failed for the reason given above. Mend that, and --resume {where} tries them again."
    if failed.any():
        return f"the report's notes say what failed or hung; --resume {where} tries it again."
    measured = trials[trials["status"].isin(MEASURED)]
    if measured.empty:
        smaller = ", and smaller --batch-sizes in a new run may fit" if (trials["status"] == "oom").any() else ""
        return f"the report's notes say why nothing could be measured{smaller}."
    request = read_run(folder).get("request", {})
    most = request.get("protocol", {}).get("most_replicates", 0)
    compared = measured[["speedup", "inference_speedup"]].notna().any(axis=None)
    trained = trials[trials["phase"] == "train"]
    seeds = list(dict.fromkeys(map(int, trained["seed"])))
    unknown = ~trained["status"].isin(MEASURED) & (trained["precision"] == BASELINE)  # such a seed compares nothing
    lacking = ACCURACY.fewest - len(seeds) + trained["seed"][unknown].nunique()
    first = ""
    if request.get("script") and request.get("quick"):
        return "without --quick, as many rounds are measured as a verdict needs."
    if request.get("quick"):
        return _whole(request)
    if compared and most < RIGOROUS.most_replicates:
        first = "--rigorous narrows the intervals, "
    elif not compared and trained["precision"].nunique() > 1 and lacking > 0:
        more = [seed for seed in range(max(seeds) + 1 + ACCURACY.fewest) if seed not in seeds]
        wanted = ",".join(map(str, seeds + more[:lacking]))
        first = f"--resume {where} --seeds {wanted} trains as often as a verdict on accuracy needs, "
    return (
        f"{first}`run_bench.py report {where} OTHER` sets runs side by side, and `run_bench.py list` names suites and "
        "precisions."
    )
