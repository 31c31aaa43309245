"""After a run: its report, and its next step."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from bench import report as reporter
from bench.cli.parser import RIGOROUS, TRAINING, Parser, option_name, run_options
from bench.report.reading import folders
from bench.results.records import MEASURED
from bench.results.run_json import read_run
from bench.results.store import FAILURES, reason_of
from bench.run.folder import reports_of
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.text import print_plain


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

    kept = [name for names in _kept(folder).values() for _, name in names if parse_precision(name).autocast]
    for pattern in dict.fromkeys(name.partition("keep=")[2] for name in kept):
        print_plain(f"In a training loop of your own, before torch.compile:\n\n{snippet(pattern)}", wrap=False)
    print_plain(f"Next: {next_step(folder)}")


def _kept(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return what a run's search found: for each suite the precisions without and with the modules to keep in fp32."""
    from bench.report.reading.load import load
    from bench.report.tables.layers import kept_names

    searched = "layers" in read_run(folder).get("request", {}).get("phases", ())
    return kept_names(load([folder]).numerics) if searched else {}


def _cost_of_keeping(request: dict[str, Any], folder: Path, suite: str, names: list[tuple[str, str]]) -> str:
    """Say how to measure a suite with and without the modules to keep in fp32.

    Args:
        request: that of the run whose search has found them, as run.json has it.
        folder: the run's.
        suite: its name.
        names: the precisions without and with the option ``keep``.
    """
    words = {ref["name"]: ref["file"] or ref["name"] for ref in request["suites"]}
    out = f"{folder}-keep-{suite}"
    precisions = ",".join((BASELINE, *chain.from_iterable(names)))
    options = {"--suite": words[suite], "--phases": "memory,speed", "--precisions": precisions, "--out": out}
    both = shlex.join((str(folder), out))
    return (
        f"`{_without_training(request, options)}` measures what keeping them costs, and `run_bench.py report {both}` "
        "shows both."
    )


def _ablations(request: dict[str, Any], folder: Path) -> list[str]:
    """Say how to measure the techniques that the explanations of a run name, for each precision."""
    techniques: dict[str, list[str]] = {}
    if "explain" in request.get("phases", ()):
        with suppress(UsageError):  # nothing was explained; the report says why
            for explanation in reporter.explain([folder]):
                techniques.setdefault(explanation.precision, []).extend(explanation.techniques)
    steps = []
    for precision, names in techniques.items():
        wanted = ",".join(dict.fromkeys((*request.get("techniques", ()), *names)))
        options = {"--phases": "memory", "--precisions": f"{BASELINE},{precision}", "--techniques": wanted}
        if names:
            command = f"{_without_training(request, options)} --ladder"
            steps.append(f"`{command}` measures what {', '.join(dict.fromkeys(names))} brings.")
    return steps


def _repeated(words: Sequence[str], instead: dict[str, str], left_out: Iterable[str] = ()) -> str:
    """Return the command of a run, for its user to type, without its folder and with other values of some options."""
    parser = Parser(add_help=False)
    for name in {"--out", "--resume", *instead, *left_out}:
        parser.add_argument(name)
    _, kept = parser.parse_known_args(words)
    return f"run_bench.py {shlex.join([*kept, *chain.from_iterable(instead.items())])}"


def _without_training(request: dict[str, Any], instead: dict[str, str]) -> str:
    """Return the command of a run without the options that only training has a use for."""
    options = run_options()
    return _repeated(request["argv"], instead, [option_name(name, options[name]) for name in (*TRAINING, "seeds")])


def _whole(request: dict[str, Any]) -> str:
    """Name the run that measures what a run with ``--quick`` left out."""
    if request.get("script"):
        return "without --quick, as many rounds are measured as a verdict needs."
    words = [word for word in request["argv"] if word != "--quick"]
    named = {"other precisions": "precisions", "other batch sizes": "batch_sizes"}
    left = ["further processes", *(what for what, field in named.items() if not request.get(field))]
    left += [] if "train" in request["phases"] or "--phases" in words else ["training"]
    return f"`{_repeated(words, {})}` measures what --quick left out: {', '.join(left)}."


def next_step(folder: Path) -> str:
    """Say how to go on after a run."""
    from bench.results.csv_file import counting, read
    from bench.spec.metrics import ACCURACY

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
    steps = [_cost_of_keeping(request, folder, suite, names) for suite, names in _kept(folder).items()]
    if steps := steps or _ablations(request, folder):
        return " ".join(steps)
    first = ""
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
