"""After a run: its report, and its next step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench import report as reporter
from bench.cli.repeat import repeated
from bench.report.reading.folders import report_name
from bench.results.records import MEASURED, TRIED_AGAIN
from bench.results.run_json import read_run
from bench.spec.errors import UsageError
from bench.spec.phase import Advice
from bench.spec.phases import PHASES
from bench.spec.text import print_plain

if TYPE_CHECKING:
    import pandas as pd

    from bench.report.page import Report

# The variable that tells a run that its report is not wanted.
WITHOUT_REPORT = "AMPMETER_WITHOUT_REPORT"
REPORTS = Path("reports")


def report(
    runs: list[Path],
    out: Path | None = None,
    *,
    published: bool = False,
    figures: Literal["overview", "all", "none"] = "overview",
) -> Report:
    """Write the report of some runs; print its ablations, its answers and where it is.

    Args:
        runs: their folders.
        out: where to write it; None is reports/, under the runs' names.
        published: whether published figures are shown, too.
        figures: of which devices.

    Returns:
        Its contents.

    Raises:
        UsageError: it cannot be written.
    """
    out = out or REPORTS / report_name(runs)
    # A run that is named twice is one run.
    runs = list(dict.fromkeys(run.resolve() for run in runs))
    if (out / "run.json").is_file():
        raise UsageError(
            f"'{out}' is the folder of a run, whose files a report would mix with its own: name "
            "another."
        )
    try:
        contents = reporter.report(runs, out, published=published, figures=figures)
    except OSError as error:
        raise UsageError(
            f"The report in '{out}' failed: {error}. Nothing that was measured is lost: report "
            f"{shlex.join(map(str, runs))} --out FOLDER writes it elsewhere."
        ) from error
    print_plain(reporter.terminal(contents, out))
    print_plain(f"Report: {out / 'report.md'} and {out / 'report.html'}")
    return contents


def show_next(folder: Path, contents: Report) -> None:
    """Print how to go on after a run with this report, and what its phases advise."""
    advised = advice_of(folder)
    for advice in advised:
        if advice.code:
            print_plain(advice.code, wrap=False)
    is_undecided = any(answer.is_undecided for answer in contents.verdicts)
    print_plain(f"Next: {next_step(folder, advised, is_undecided=is_undecided)}")


def advice_of(folder: Path) -> list[Advice]:
    """Return what the phases of a run advise."""
    request = read_run(folder).get("request", {})
    advised = []
    for name in request.get("phases", ()):
        if name in PHASES:  # the folder of an optional one may have been deleted
            advised += PHASES[name].advice(folder, request)
    return advised


def next_step(folder: Path, advised: Sequence[Advice] = (), *, is_undecided: bool = False) -> str:
    """Return how to go on after a run; what its phases ``advised`` comes before the usual.

    ``is_undecided`` tells whether its advice may change with longer measuring.
    """
    from bench.report.reading.trials import read_details, read_trials

    run, where = read_run(folder), shlex.quote(str(folder))
    request = run.get("request", {})
    # The first of these that applies: what is missing comes before what else could be measured.
    if run.get("undecided"):
        return f"`python run_bench.py --resume {where}` measures what is undecided."
    trials = read_trials(folder, run, read_details(folder))
    statuses = {*trials["status"]}
    if not statuses.isdisjoint(TRIED_AGAIN):
        return (
            f"the report's notes say what failed or hung; --resume {where} tries it again, or a "
            "new run if you change the suite or the script."
        )
    if statuses.isdisjoint(MEASURED):
        smaller = ", and smaller --batch-sizes in a new run may fit" if "oom" in statuses else ""
        return f"the report's notes say why nothing could be measured{smaller}."
    steps = [advice.step for advice in advised if advice.step]
    if steps:
        return " ".join(steps)
    return _further(request, trials, where, is_undecided=is_undecided)


def _further(
    request: Mapping[str, Any], trials: pd.DataFrame, where: str, *, is_undecided: bool
) -> str:
    """Return how to go on after a run that measured all that it was to."""
    if request.get("quick"):
        return f"{repeated(request)} measures what --quick left out."
    if is_undecided or "unconverged" in {*trials["status"]}:
        return (
            f"some intervals are too wide to decide: {repeated(request)} with a larger "
            "--time-budget (default: 30s) narrows them."
        )
    return (
        f"{_more_seeds(trials, where)}`python run_bench.py report {where} OTHER` sets runs side by "
        "side, and `python run_bench.py list` names suites and precisions."
    )


def _more_seeds(trials: pd.DataFrame, where: str) -> str:
    """Return how to train with the seeds that a verdict on accuracy lacks, or empty."""
    from bench.spec.metrics import ACCURACY, learned

    trained = trials[trials["phase"] == "train"]
    tested: list[str] = []
    for metric in learned():
        tested += metric.columns
    seeds = {int(seed) for seed in trained["seed"]}
    is_enough = trained["precision"].nunique() < 2 or len(seeds) >= ACCURACY.fewest
    if is_enough or trained[tested].isna().all(axis=None):
        return ""
    # Those that are there already stay: --resume refuses to leave one out.
    seeds.update(range(ACCURACY.fewest))
    wanted = ",".join(map(str, sorted(seeds)))
    return (
        f"`python run_bench.py --resume {where} --seeds {wanted}` trains as often as a verdict on "
        "accuracy needs, "
    )
