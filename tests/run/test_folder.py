"""A run is continued only where its rows can be compared, by one process at a time, and says how it
goes on.
"""

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from bench.cli.parser import RIGOROUS, parse
from bench.cli.repeat import repeated
from bench.planning.plan import Plan
from bench.report import terminal
from bench.results.columns import COLUMNS
from bench.results.run_json import read_run
from bench.results.store import Store
from bench.run import reporting
from bench.run.execute import execute, remaining
from bench.run.folder import LOCK, choose_folder, locked, new_folder
from bench.run.prepare import PreparedRun
from bench.run.reporting import report
from bench.script import command as script
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.request import Request, Script
from bench.spec.trial import SuiteRef
from tests.conftest import TINY, call
from tests.report.builders import RunBuilder
from tests.report.fleet import edit_run
from tests.results.test_store import block, contents, result
from tests.rows import trial_rows

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = SimpleNamespace(overlapping=False, notes=[])


@pytest.fixture
def prepared(machine):
    """Return a function that prepares a run without trials, of a request for mlp on a text."""

    def prepared(
        *,
        torch="2.15",
        threads=4,
        name="Test CPU",
        fingerprint="aaaa",
        digest="",
        **asked,
    ):
        device = replace(machine.devices[0], threads=threads, name=name)
        text = PreparedData(
            source=DataSource(kind="text", path="/book.txt"), fingerprint=fingerprint
        )
        return PreparedRun(
            request=Request(suites=("mlp",), **asked),
            suites=(SuiteRef(name="mlp", digest=digest),),
            environment=replace(machine, torch=torch, devices=(device,)),
            plan=Plan(trials=()),
            data=(text, PreparedData(source=DataSource(kind="synthetic"))),
        )

    return prepared


@pytest.fixture
def go_on(prepared, tmp_path):
    """Return a function that runs a prepared run, in a folder or on from what is there."""

    def go_on(folder=tmp_path, **changed):
        run = prepared(**changed)
        remaining(run.plan, folder)  # as the command line does
        execute(run, folder, LAUNCHER, 0.0)

    return go_on


def test_on_the_same_machine_a_run_goes_on_and_keeps_its_start(tmp_path, go_on, monkeypatch):
    monkeypatch.setattr("bench.run.execute.utc_now", mock.Mock(side_effect="abcd"))
    go_on(out=tmp_path)
    go_on(resume=tmp_path)
    again = read_run(tmp_path)
    assert again["started"] == "a"
    assert again["finished"] == "c"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UsageError("it cannot go on")])
def test_warnings_and_notes_of_a_run_that_ended_early_are_kept_when_it_goes_on(
    tmp_path, prepared, go_on, error
):
    warned = replace(prepared(), warnings=("The GPU is shared.",))
    launcher = SimpleNamespace(overlapping=False, notes=["A V100 was lost."])
    with (
        mock.patch("bench.run.execute.run_plan", side_effect=error),
        pytest.raises(type(error)),
    ):
        execute(warned, tmp_path, launcher, 0.0)
    assert read_run(tmp_path)["finished"] is None
    go_on()
    assert read_run(tmp_path)["warnings"] == ["The GPU is shared.", "A V100 was lost."]


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (("mlp", "vit", "mlp"), "mlp+vit-cpu-2"),
        (("hf:org/model0", "hf:org/model1"), "hf-org-model0+hf-org-model1-cpu-2"),
        ([f"timm:resnet{number}" for number in range(20)], "timm-resnet0+timm-resnet1+"),
    ],
)
def test_a_run_is_named_after_its_suites_each_once_however_many_values_are_swept(
    tmp_path, prepared, monkeypatch, names, folder
):
    monkeypatch.chdir(tmp_path)
    swept = []
    for width, name in enumerate(names):
        swept.append(SuiteRef(name=name, parameters=(("width", width),)))
    assert new_folder(replace(prepared(), suites=swept)).name.startswith(folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"torch": "2.6"}, r"differs in torch \(2.15; here 2.6\)"),
        ({"threads": 2}, r"the device cpu \(Test CPU on 4 threads; here Test CPU on 2 threads\)"),
        ({"name": "Another CPU"}, "here Another CPU on 4 threads"),
        ({"fingerprint": "bbbb"}, r"differs in the content of text:/book\.txt \(aaaa; here bbbb\)"),
        ({"digest": "cccc"}, "differs in the code of suite mlp"),
        ({"seeds": (1,)}, "differs in --seeds"),
        ({"epochs": 3, "clip_grad": 1.0}, "differs in --epochs, --clip-grad"),
        ({"largest_batch": True, "protocol": RIGOROUS}, "differs in --batch-sizes max, --rigorous"),
        ({"script": Script(command=("a.py",), arms=())}, "differs in the script's command"),
    ],
)
def test_seeds_may_be_added_and_other_circumstances_or_options_are_refused_by_name(
    tmp_path, go_on, changed, message
):
    go_on()
    go_on(seeds=(0, 1))
    (tmp_path / "speed.csv").write_text(",".join(COLUMNS["speed.csv"]) + "\nhalf a li")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=message):
        go_on(**{"seeds": (0, 1), **changed})
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_added_seeds_are_the_runs_own_from_then_on(tmp_path):
    def trained():
        rows = {}
        for row in trial_rows(tmp_path / "mine"):
            rows[row["seed"]] = row["started"]
        return rows

    (tmp_path / "tiny.py").write_text(TINY)
    words = (
        "--suite tiny.py --gpus cpu --precisions fp32 --phases train --epochs 1 --batch-sizes 4 "
        "--seeds 1"
    )
    assert call(*words.split(), "--out", "mine", cwd=tmp_path).returncode == 0
    before = trained()
    assert call("--resume", "mine", "--seeds", "5", cwd=tmp_path).returncode == 2
    assert call("--resume", "mine", "--seeds", "1,5", cwd=tmp_path).returncode == 0
    after = trained()
    assert [*after] == ["1", "5"]
    assert after["1"] == before["1"]
    assert call("--resume", "mine", cwd=tmp_path).returncode == 0
    assert trained() == after


@pytest.mark.parametrize(
    "words",
    [
        (
            "--suite tiny.py --set width=9 --precisions fp32,amp-fp16:init_scale=1024 "
            "--batch-sizes 2,4 --quick --gpus cpu"
        ),
        (
            "explain --suite mlp --sweep width=8,9 --techniques channels-last --phases train "
            "--seeds 1,2 --within 90s"
        ),
        "script --arm a=-x --arm b=-y --steps 20 -- tiny.py more",
    ],
)
def test_a_bare_resume_repeats_the_request_with_what_it_adds(
    tiny_file, prepared, monkeypatch, words
):
    monkeypatch.chdir(tiny_file.parent)
    options = parse(shlex.split(words))
    request = options if isinstance(options, Request) else script.COMMAND.run(options)
    ref = SuiteRef(name=request.suites[0])
    if request.suites == ("tiny.py",) and not request.script:
        ref = SuiteRef(name="tiny", file=str(tiny_file))
    run = replace(prepared(), request=request, suites=(ref, replace(ref, digest="a variant's")))
    execute(run, Path("run"), LAUNCHER, 0.0)
    again, _ = choose_folder(parse(["--resume", "run", "--trial-timeout", "90s", "--dry-run"]))
    given = {"resume": Path("run"), "dry_run": True, "trial_timeout_s": 90.0}
    assert again == replace(request, suites=(ref.word,), within_s=None, **given)


def test_what_remains_of_a_run_that_goes_on_has_no_final_rows(tmp_path, go_on, tiny_trial, cpu):
    first = replace(tiny_trial, phase="speed")
    second = replace(first, replicate=1)
    third = replace(first, replicate=2)
    fourth = replace(first, replicate=3)
    plan = Plan(trials=(first, second, third, fourth))
    assert remaining(plan, None) == plan
    go_on()
    store = Store(tmp_path)
    store.add_results(first, cpu, [result(status="ok")])
    store.add_results(second, cpu, [result(status="oom")])
    store.add_results(third, cpu, [result(status="failed")])
    assert remaining(plan, tmp_path).trials == (third, fourth)


def test_what_failed_is_said_under_the_answers_with_where_the_others_are(tmp_path):
    contents = SimpleNamespace(
        grid=SimpleNamespace(groups={}),
        lists={"Failed": ["mlp on GPU 0: bf16 failed in memory"] * 10},
        findings=[],
        stalled=[],
        other_types=[],
        faults=[],
    )
    text = " ".join(terminal(contents, tmp_path).split())
    assert "in memory 2 more lines" in text
    assert f"are in {tmp_path / 'report.html'}." in text


def test_a_folder_is_taken_if_it_is_empty_or_has_a_lock_alone(tmp_path):
    request = Request(out=tmp_path)
    assert choose_folder(request) == (request, tmp_path)
    (tmp_path / LOCK).touch()
    assert choose_folder(request) == (request, tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"exists already\. Use another --out\.$"):
        choose_folder(request)


@pytest.mark.parametrize("fault", ["speed.csv", "run.json", LOCK])
def test_a_folder_that_is_not_a_runs_is_refused_and_nothing_is_changed(
    *, tmp_path, go_on, tiny_trial, cpu, fault
):
    go_on()
    speed = replace(tiny_trial, phase="speed")
    store = Store(tmp_path)
    store.add_results(speed, cpu, [result()], [block(speed)])
    if fault == "run.json":
        (tmp_path / fault).unlink()
    if fault == "speed.csv":
        (tmp_path / fault).write_text("a,b\n1,2\n3,")  # a stranger's
    with locked(tmp_path) if fault == LOCK else nullcontext():
        before = contents(tmp_path)
        with pytest.raises(UsageError, match=re.escape(fault)):
            go_on()
        assert contents(tmp_path) == before


def test_a_folder_that_is_lost_in_mid_run_is_one_sentence_and_its_lock_is_let_go(
    tmp_path, go_on, monkeypatch
):
    def lose(session):
        shutil.rmtree(tmp_path / "run")
        session.store.add([])

    monkeypatch.setattr("bench.run.execute.run_plan", lose)
    with pytest.raises(UsageError, match="was deleted or moved"):
        go_on(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_report_that_cannot_be_written_says_how_to_write_it_elsewhere(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("bench.report.report", mock.Mock(side_effect=full))
    with pytest.raises(UsageError, match=r"No space left on device.* report .*run --out FOLDER"):
        report([tmp_path / "run"], tmp_path / "reports")


def test_the_next_step_after_modules_to_keep_were_found_measures_what_that_costs(
    tmp_path, monkeypatch
):
    kept = {"amp-bf16:keep=head.*": "amp-bf16"}
    monkeypatch.setattr("bench.phases.layers.next_step.kept_names", lambda _rows: kept)
    folder = RunBuilder(tmp_path / "run").speed().folder
    edit_run(folder, lambda stored: stored["request"].update(phases=["layers"]))
    step = reporting.next_step(folder, reporting.advice_of(folder))
    assert "--phases memory,speed --precisions 'fp32,amp-bf16,amp-bf16:keep=head.*'`" in step


@pytest.mark.parametrize(
    ("words", "more", "expected"),
    [
        ("layers --suite a --precision b --quick --out x", (), "layers --suite a --precision b"),
        ("layers --suite a --out=x", ("--ladder",), "--suite a --ladder"),
        (
            "--suite a --quick --within=9s --ladder --techniques b",
            (),
            "--suite a --ladder --techniques b",
        ),
        (
            "--suite a --quick --ladder --techniques b",
            ("--phases", "speed"),
            "--suite a --phases speed",
        ),
        ("explain --suite a --phases memory --quick", (), "explain --suite a --phases memory"),
        ("explain --suite a --phases layers", ("--phases", "memory"), "--suite a --phases memory"),
        ("script --quick --inject a,b -- a.py --quick", (), "script --inject a,b -- a.py --quick"),
    ],
)
def test_what_quick_left_out_or_something_else_is_measured_by_the_same_command(
    words, more, expected
):
    assert repeated({"argv": words.split()}, *more) == f"`python run_bench.py {expected}`"


def suggested(run: RunBuilder) -> set[str]:
    """The options that are named as a run's next step."""
    return set(re.findall(r"--[a-z-]+(?: [\d,]+)?", reporting.next_step(run.folder)))


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


@pytest.mark.parametrize(("seeds", "options"), [(2, {"--resume", "--seeds 0,1,2,3,4"}), (5, set())])
def test_as_many_seeds_as_a_verdict_lacks_are_the_next_step(run, seeds, options):
    accuracies = [90.0] * seeds
    run.train("fp32", accuracies)
    run.train("amp-bf16", accuracies)
    assert suggested(run) == options


def test_no_more_seeds_are_the_next_step_where_nothing_is_tested(run):
    for name in ("fp32", "amp-bf16"):
        run.train(name, [None], epochs=1, test_loss=None)
    assert suggested(run) == set()


def test_more_time_is_the_next_step_where_an_interval_is_too_wide(run):
    run.speed()
    assert suggested(run) == set()
    run.lost("speed", "fp16-master", "unconverged")
    assert suggested(run) == {"--time-budget"}


def test_more_time_is_the_next_step_where_advice_may_change(run, capsys):
    run.speed(speedups=[0.8, 1.3, 1.05])
    contents = reporting.report([run.folder], run.folder / "report")
    capsys.readouterr()
    reporting.show_next(run.folder, contents)
    assert "--time-budget" in capsys.readouterr().out


def test_only_what_may_end_otherwise_is_to_be_tried_again(run):
    run.lost("memory", "fp32", "oom")
    assert suggested(run) == {"--batch-sizes"}
    run.lost("train", "fp32", "failed")
    assert suggested(run) == {"--resume"}


# One process at a time writes to a run's folder.

HOLD = "import sys, time; from pathlib import Path; from bench.run.folder import locked\n"
HOLD += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_a_folder_that_another_process_holds_is_refused_until_that_has_ended_in_whatever_way(
    tmp_path,
):
    path = tmp_path / LOCK
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout.readline() == b"held\n"
        message = f"is in use: .*{LOCK}.* names the process"
        with pytest.raises(UsageError, match=message), locked(tmp_path):
            pass
        owner.kill()
    assert path.exists()
    with locked(tmp_path):
        assert path.read_text().split()[0] == str(os.getpid())
    assert not path.exists()


def test_an_owner_on_another_host_is_refused_and_keeps_its_lock(tmp_path):
    path = tmp_path / LOCK
    path.write_text("71\nnode-7\n12\n")
    with pytest.raises(UsageError, match=f"is in use: '{path}'"), locked(tmp_path):
        pass
    assert path.read_text() == "71\nnode-7\n12\n"


@pytest.mark.parametrize("given", ["results", "results/a"])
def test_no_report_is_written_into_the_folder_of_a_run(tmp_path, given):
    run = tmp_path / "results" / "a"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="is the folder of a run"):
        reporting.report([tmp_path / given], run)
