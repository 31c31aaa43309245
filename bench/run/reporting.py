"""After a run: its report, and its next step."""

from __future__ import annotations

import shlex
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from bench import report as reporter
from bench.cli.parser import RIGOROUS
from bench.report.reading import folders
from bench.results.records import MEASURED
from bench.results.run_json import read_run
from bench.results.store import FAILURES
from bench.run.folder import reports_of
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.text import print_plain

OF_WHAT = ("--precisions", "--phases", "--techniques", "--epochs", "--seeds", "--within", "--out", "--resume")
"""Options with a value that say what of a recipe a run measures, or where it is stored."""
WITHOUT_REPORT = "AMPMETER_WITHOUT_REPORT"
"""The variable that tells a run that its report is not wanted."""


def report(
    runs: list[Path],
    out: Path | None = None,
    *,
    published: bool = False,
    figures: Literal["overview", "all", "none"] = "overview",
) -> None:
    """Write the report of some runs; print its ablations, its answers and where it is.

    Args:
        runs: their folders.
        out: where to write it; None is reports/, under the runs' names.
        published: whether published figures are shown, too.
        figures: of which devices.

    Raises:
        UsageError: it cannot be written.
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
    print_plain(reporter.terminal(contents, out))
    print_plain(f"Report: {out / 'report.md'} and {out / 'report.html'}")


def report_run(folder: Path) -> None:
    """Write the report of a run that has just ended, and print it as ``report`` does."""
    report([folder], folders.report_folder([folder], reports_of(folder)))


def report_folder(runs: list[Path]) -> Path:
    """Return where the report of some runs belongs: reports/, under the runs' names."""
    return folders.report_folder(runs, Path("reports"))


def show_next(folder: Path) -> None:
    """Print how to go on after a run, and code that keeps the modules in fp32 which its search has found."""
    from bench.report.tables.layers import snippet

    for _, keeping in _kept(folder):
        if parse_precision(keeping).autocast:
            code = snippet(keeping.partition("keep=")[2])
            print_plain(f"In a training loop of your own, before torch.compile:\n\n{code}", wrap=False)
    print_plain(f"Next: {next_step(folder)}")


def _kept(folder: Path) -> list[tuple[str, str]]:
    """Return the precisions without and with the modules to keep in fp32 that a run's search has found."""
    from bench.report.reading.load import load
    from bench.report.tables.layers import kept_names

    if "layers" not in read_run(folder).get("request", {}).get("phases", ()):
        return []
    return list(dict.fromkeys(chain.from_iterable(kept_names(load([folder]).numerics).values())))


def _command(request: dict[str, Any], *more: str) -> str:
    """Write the command of a run without the options that say what and how much it measures, and with others."""
    words = []
    is_value = False  # of an option that is left out
    for word in request.get("argv", ()):
        name, equals, _ = word.partition("=")
        if is_value or name in ("explain", "layers", "--quick", "--ladder"):
            is_value = False
        elif name in OF_WHAT:
            is_value = not equals
        else:
            words.append(word)
    return f"`python run_bench.py {shlex.join([*words, *more])}`"


def _suggested(request: dict[str, Any], folder: Path) -> list[str]:
    """Write the commands that measure what a search or an explanation of a run has suggested."""
    steps = []
    if pairs := _kept(folder):
        precisions = ",".join((BASELINE, *dict.fromkeys(chain.from_iterable(pairs))))
        command = _command(request, "--phases", "memory,speed", "--precisions", precisions)
        steps.append(f"{command} measures what keeping them costs.")
    techniques: dict[str, dict[str, None]] = {}
    if "explain" in request.get("phases", ()):
        with suppress(UsageError):  # nothing was explained; the report says why
            for explanation in reporter.explain([folder]):
                techniques.setdefault(explanation.precision, {}).update(dict.fromkeys(explanation.techniques))
    for precision, names in techniques.items():
        if names:
            arms = ("--precisions", f"{BASELINE},{precision}", "--techniques", ",".join(names))
            steps.append(f"{_command(request, '--ladder', *arms)} measures what {', '.join(names)} brings.")
    return steps


def next_step(folder: Path) -> str:
    """Say how to go on after a run."""
    from bench.report.reading.trials import read_trials
    from bench.spec.metrics import ACCURACY

    where = shlex.quote(str(folder))
    if read_run(folder).get("undecided"):
        return f"`python run_bench.py --resume {where}` measures what is undecided."
    trials = read_trials(folder, read_run(folder))
    measured = trials[trials["status"].isin(MEASURED)]
    if trials["status"].isin(FAILURES).any():
        return f"the report's notes say what failed or hung; --resume {where} tries it again."
    if measured.empty:
        smaller = ", and smaller --batch-sizes in a new run may fit" if (trials["status"] == "oom").any() else ""
        return f"the report's notes say why nothing could be measured{smaller}."
    request = read_run(folder).get("request", {})
    if steps := _suggested(request, folder):
        return " ".join(steps)
    if request.get("quick"):
        return f"{_command(request)} measures what --quick left out."
    trained = trials[trials["phase"] == "train"]
    seeds = set(map(int, trained["seed"]))
    first = ""
    if measured[["speedup", "inference_speedup"]].notna().any(axis=None):
        if request.get("protocol", {}).get("most_replicates", 0) < RIGOROUS.most_replicates:
            first = "--rigorous narrows the intervals, "
    elif trained["precision"].nunique() > 1 and len(seeds) < ACCURACY.fewest:
        wanted = ",".join(map(str, sorted(seeds | set(range(ACCURACY.fewest)))))
        first = f"--resume {where} --seeds {wanted} trains as often as a verdict on accuracy needs, "
    return (
        f"{first}`python run_bench.py report {where} OTHER` sets runs side by side, and `python run_bench.py list` "
        "names suites and precisions."
    )
