"""A run is continued only where its rows can be compared, by one process at a time, and says how it goes on."""

import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cli.parser import RIGOROUS, parse
from bench.planning.plan import Plan
from bench.report.page import Section
from bench.report.parts import Finding
from bench.results.columns import COLUMNS
from bench.results.records import Environment
from bench.results.run_json import read_run
from bench.results.store import Store
from bench.run import reporting
from bench.run.execute import execute, tell_what_remains
from bench.run.folder import LOCK, check, locked, new_folder, open_folder
from bench.run.prepare import PreparedRun
from bench.run.reporting import report
from bench.script import command as script
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.repeat import at_length, repeated
from bench.spec.request import Request
from bench.spec.trial import SuiteRef
from tests.conftest import TINY, call
from tests.report.builders import RunBuilder
from tests.report.fleet import edit_run
from tests.results.test_store import block, contents, result
from tests.rows import rows, trial_rows

ROOT = Path(__file__).resolve().parents[2]
REQUEST = Request(suites=("mlp",))


def prepared(environment: Environment, request: Request = REQUEST) -> PreparedRun:
    """A plan without trials."""
    plan = Plan(trials=(), seconds=())
    return PreparedRun(request=request, suites=(SuiteRef(name="mlp"),), environment=environment, plan=plan)


LAUNCHER = SimpleNamespace(overlapping=False, notes=[])


def run_nothing(folder: Path, environment: Environment, request: Request = REQUEST) -> None:
    """Run a plan without trials in a folder."""
    execute(prepared(environment, request), folder, LAUNCHER)


def changed(machine: Environment, **changes: object) -> Environment:
    return replace(machine, devices=(replace(machine.devices[0], **changes),))


def test_on_the_same_machine_a_run_goes_on_and_keeps_its_start(tmp_path, machine, monkeypatch):
    times = iter("abcd")
    monkeypatch.setattr("bench.run.execute.now", lambda: next(times))
    run_nothing(tmp_path, machine, replace(REQUEST, out=tmp_path))
    run_nothing(tmp_path, machine, replace(REQUEST, resume=tmp_path))
    again = read_run(tmp_path)
    assert (again["started"], again["finished"]) == ("a", "c")


def test_warnings_and_notes_of_a_run_that_was_stopped_are_kept_when_it_goes_on(tmp_path, machine, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    warned = replace(prepared(machine), warnings=("The GPU is shared.",))
    launcher = SimpleNamespace(overlapping=False, notes=["A V100 was lost."])
    with monkeypatch.context() as stopped:
        stopped.setattr("bench.run.runner.Runner.run", stop)
        with pytest.raises(KeyboardInterrupt):
            execute(warned, tmp_path, launcher)
    execute(warned, tmp_path, LAUNCHER)
    assert read_run(tmp_path)["warnings"] == ["The GPU is shared.", "A V100 was lost."]


def test_a_run_is_named_after_its_suites_each_once_however_many_values_are_swept(tmp_path, machine, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = tuple(SuiteRef(name=name, parameters=(("width", width),)) for width in (64, 96) for name in ("mlp", "vit"))
    assert new_folder(replace(prepared(machine), suites=swept)).name.startswith("mlp+vit-cpu-2")
    models = tuple(SuiteRef(name=f"hf:org/model{number}") for number in range(2))
    assert new_folder(replace(prepared(machine), suites=models)).name.startswith("hf_org_model0+hf_org_model1-cpu-2")
    models = tuple(SuiteRef(name=f"timm:resnet{number}") for number in range(20))
    assert new_folder(replace(prepared(machine), suites=models)).name.startswith("timm_resnet0+19-more-cpu-2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda here: replace(here, torch="2.6"), "was made with torch 2.15 on 4 threads; this is torch 2.6 on 4 thr"),
        (lambda here: changed(here, threads=2), "with torch 2.15 on 4 threads; this is torch 2.15 on 2 threads"),
        (lambda here: changed(here, name="Another CPU"), "was made on Test CPU; this is Another CPU"),
    ],
    ids=["torch", "threads", "device"],
)
def test_another_torch_thread_count_or_device_is_refused_and_named(tmp_path, machine, change, message):
    here = changed(machine, threads=4)
    run_nothing(tmp_path, here)
    (tmp_path / "speed.csv").write_text(",".join(COLUMNS["speed.csv"]) + "\nhalf a li")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=message):
        run_nothing(tmp_path, change(here))
    with pytest.raises(UsageError, match=message):  # so does --dry-run
        check(prepared(change(here), replace(REQUEST, dry_run=True)), tmp_path)
    assert contents(tmp_path) == before


def test_a_text_or_folder_whose_content_changed_is_refused_and_named(tmp_path, machine):
    text = PreparedData(source=DataSource(kind="text", path="/book.txt"), fingerprint="aaaa")
    run = replace(prepared(machine), data=(text, PreparedData(source=DataSource(kind="synthetic"))))
    execute(run, tmp_path, LAUNCHER)
    execute(run, tmp_path, LAUNCHER)  # the same text
    with pytest.raises(UsageError, match=r"another content of text:/book\.txt"):
        execute(replace(run, data=(replace(text, fingerprint="bbbb"),)), tmp_path, LAUNCHER)


def test_a_file_of_blocks_that_the_report_would_refuse_is_refused_before_the_run_goes_on(
    tmp_path, machine, tiny_trial, cpu
):
    run_nothing(tmp_path, machine)
    speed = replace(tiny_trial, phase="speed")
    with Store(tmp_path) as store:
        store.add_results(speed, cpu, [result()], [block(speed), replace(block(speed), time_ms=-1.0)])
    with pytest.raises(UsageError, match=r"blocks.csv', line 3: time_ms cannot be '-1"):
        run_nothing(tmp_path, machine)


def test_seeds_may_be_added_and_nothing_else_may_change(tmp_path, machine):
    run_nothing(tmp_path, machine)
    run_nothing(tmp_path, machine, replace(REQUEST, seeds=(0, 1)))
    with pytest.raises(UsageError, match="was started with other --seeds"):
        run_nothing(tmp_path, machine, replace(REQUEST, seeds=(1,)))
    with pytest.raises(UsageError, match="was started with other --epochs, --clip-grad"):
        run_nothing(tmp_path, machine, replace(REQUEST, seeds=(0, 1), epochs=3, clip_grad=1.0))
    other = replace(REQUEST, seeds=(0, 1), largest_batch=True, batch_sizes=(4,), protocol=RIGOROUS)
    with pytest.raises(UsageError, match=r"was started with other --batch-sizes, .*--rigorous"):
        run_nothing(tmp_path, machine, other)


@pytest.mark.slow
def test_added_seeds_are_the_runs_own_from_then_on(tmp_path):
    def trained():
        return [(row["seed"], row["started"]) for row in trial_rows(tmp_path / "mine")]

    (tmp_path / "tiny.py").write_text(TINY)
    words = "--suite tiny.py --gpus cpu --precisions fp32 --phases train --epochs 1 --batch-sizes 4 --seeds 1"
    assert call(*words.split(), "--out", "mine", cwd=tmp_path).returncode == 0
    (before,) = trained()
    assert call("--resume", "mine", "--seeds", "5", cwd=tmp_path).returncode == 2
    assert call("--resume", "mine", "--seeds", "1,5", cwd=tmp_path).returncode == 0
    after = trained()
    assert after[0] == before
    assert [seed for seed, _ in after] == ["1", "5"]
    assert call("--resume", "mine", cwd=tmp_path).returncode == 0
    assert trained() == after


def test_a_run_that_is_stopped_before_its_first_trial_can_be_resumed(tmp_path, monkeypatch, machine):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.run.execute.Sampler", stop)
    with pytest.raises(KeyboardInterrupt):
        run_nothing(tmp_path / "run", machine)
    assert read_run(tmp_path / "run")["finished"] is None


@pytest.mark.parametrize(
    "words",
    [
        "--suite tiny.py --set width=9 --precisions fp32,amp-fp16:init_scale=1024 --batch-sizes 2,4 --quick --gpus cpu",
        "explain --suite mlp --sweep width=8,9 --techniques channels-last --phases train --seeds 1,2 --within 90s",
        "script --arm a=-x --arm b=-y --steps 20 -- tiny.py more",
    ],
)
def test_a_bare_resume_repeats_the_request_with_what_it_adds(tmp_path, machine, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.py"
    file.write_text(TINY)
    options = parse(shlex.split(words))
    request = options if isinstance(options, Request) else script.COMMAND.run(options)
    ref = SuiteRef(name=Path(request.suites[0]).stem, file=str(file)) if "tiny.py" in words else SuiteRef(name="mlp")
    ref = SuiteRef(name="tiny.py") if request.script else ref
    execute(
        replace(prepared(machine, request), suites=(ref, replace(ref, digest="a variant's"))), Path("run"), LAUNCHER
    )
    again, _ = open_folder(parse(["--resume", "run", "--trial-timeout", "90s", "--dry-run"]))
    suites = (ref.word,)
    given = {"resume": Path("run"), "dry_run": True, "trial_timeout_s": 90.0}
    assert again == replace(request, suites=suites, within_s=None, **given)


def test_a_suite_file_of_the_users_is_found_from_another_folder_or_its_path_is_said(tmp_path, machine, monkeypatch):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (file := tmp_path / "tiny.py").write_text(TINY)
    ref = SuiteRef(name="tiny", file=str(file))
    request, folder = replace(REQUEST, argv=("--suite", "./tiny.py")), tmp_path / "run"
    execute(replace(prepared(machine, request), suites=(ref,)), folder, LAUNCHER)
    monkeypatch.chdir(elsewhere)
    assert open_folder(Request(suites=(), resume=folder))[0].suites == (str(file),)
    file.unlink()
    with pytest.raises(UsageError, match=rf"suite file '{file}', which is not there"):
        open_folder(Request(suites=(), resume=folder))


def test_a_run_that_goes_on_says_what_is_finished_and_what_remains(tmp_path, machine, tiny_trial, cpu, capsys):
    trials = tuple(replace(tiny_trial, phase="speed", replicate=number) for number in range(4))
    plan = replace(prepared(machine), plan=Plan(trials=trials, seconds=(3.0, 3.0, 3.0, 30.0)))
    tell_what_remains(plan, None)
    tell_what_remains(plan, tmp_path)
    assert not capsys.readouterr().out
    run_nothing(tmp_path, machine)
    with Store(tmp_path) as store:
        for trial, status in zip(trials, ("ok", "oom", "failed"), strict=False):
            store.add_results(trial, cpu, [result(status=status)])
    tell_what_remains(plan, tmp_path)
    assert "2 of 4 planned trials are finished already; 2 left, about 37 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("failed", "unexplained", "words", "under"),
    [
        ([f"mlp on GPU {number}: bf16 failed in memory" for number in range(10)], [], "in memory 2 more lines", True),
        (
            [],
            [Finding(subject="No explanation", result="it takes fp32")],
            "No explanation: it takes fp32.",
            False,
        ),
    ],
)
def test_what_failed_is_said_under_the_answers_with_where_its_reason_is_unless_that_is_said_already(
    tmp_path, capsys, monkeypatch, *, failed, unexplained, words, under
):
    findings = [Section(title="", findings=unexplained)]
    grid, lists = SimpleNamespace(groups={}), {"Failed": failed}
    contents = SimpleNamespace(grid=grid, lists=lists, findings=findings, stalled=[], strayed=[], faults=[])
    monkeypatch.setattr("bench.report.report", lambda *_, **__: contents)
    report([tmp_path], tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert (f"under Notes in {tmp_path / 'report.html'}." in said) == under


def test_a_folder_is_taken_if_it_is_empty_or_has_a_lock_alone(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    request = replace(REQUEST, out=out)
    assert open_folder(request) == (request, out)
    (out / "run.lock").touch()
    assert open_folder(request) == (request, out)
    (out / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"exists already.*another --out\.$") as refused:
        open_folder(request)
    assert "--resume" not in str(refused.value)


@pytest.mark.parametrize("fault", ["a stranger's file", "rows without run.json", "another process"])
def test_a_folder_that_a_run_refuses_a_dry_run_refuses_too_and_nothing_is_changed(
    tmp_path, machine, tiny_trial, cpu, fault
):
    run_nothing(tmp_path, machine)
    with ExitStack() as stack:
        if fault == "a stranger's file":
            (tmp_path / "speed.csv").write_text("a,b\n1,2\n3,")
        elif fault == "another process":
            stack.enter_context(locked(tmp_path))
        else:
            with Store(tmp_path) as store:
                store.add_results(tiny_trial, cpu, [result()])
            (tmp_path / "run.json").unlink()
        before = contents(tmp_path)
        for dry_run in (True, False):
            with pytest.raises(UsageError, match=r"(speed|memory)\.csv|run\.lock"):
                check(prepared(machine, replace(REQUEST, dry_run=dry_run)), tmp_path)
        with pytest.raises(UsageError, match=r"(speed|memory)\.csv|run\.lock"):
            run_nothing(tmp_path, machine)
        assert contents(tmp_path) == before


def test_a_run_that_goes_on_says_what_it_has_dropped(tmp_path, machine, tiny_trial, cpu, capsys):
    run_nothing(tmp_path, machine)
    with Store(tmp_path) as store:
        store.add_results(replace(tiny_trial, phase="speed"), cpu, [result()], [block(tiny_trial)])
    (tmp_path / "speed.csv").unlink()
    run_nothing(tmp_path, machine)
    assert "Rows of trials that did not end were dropped: 1 of blocks.csv." in capsys.readouterr().out
    assert rows(tmp_path, "blocks.csv") == []


def test_a_folder_that_is_lost_in_mid_run_is_one_sentence_and_its_lock_is_let_go(tmp_path, machine, monkeypatch):
    def lose(execution, _plan):
        shutil.rmtree(tmp_path / "run")
        execution.store.add([])

    monkeypatch.setattr("bench.run.runner.Runner.run", lose)
    with pytest.raises(UsageError, match="was deleted or moved"):
        run_nothing(tmp_path / "run", machine)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path, machine, monkeypatch):
    def make(*_: object, dir: Path) -> BytesIO:
        if dir.name == "here":
            raise OSError(errno.EROFS, "Read-only file system")
        return BytesIO()

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.TemporaryFile", make)
    with pytest.raises(UsageError, match=r"'results': Read-only file system\..*--out"):
        check(prepared(machine), None)
    check(prepared(machine, replace(REQUEST, dry_run=True)), None)


def test_a_report_that_cannot_be_written_says_how_to_write_it_elsewhere(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "reports" / "x" / "report.md"))

    monkeypatch.setattr("bench.report.report", fail)
    with pytest.raises(UsageError, match=r"No space left on device\..* report .*run --out FOLDER"):
        report([tmp_path / "run"], tmp_path / "reports" / "x")


@pytest.fixture
def explained(monkeypatch):
    """The explanation of each precision of a run; to be filled."""
    explanations = []
    monkeypatch.setattr("bench.phases.explain.next_step.explained", lambda _runs: explanations)
    return explanations


def test_the_next_step_after_an_explanation_is_a_ladder_to_the_techniques_of_its_reasons(tmp_path, explained):
    run = RunBuilder(tmp_path / "run").speed()
    edit_run(run.folder, lambda run: run["request"].update(phases=["speed", "explain"]))
    explained += [
        SimpleNamespace(arm=SimpleNamespace(precision=name), techniques=techniques)
        for name, techniques in (("amp-fp16", ["compile"]), ("tf32", []), ("amp-fp16", ["fused-optimizer"]))
    ]
    words = "--ladder --precisions fp32,amp-fp16 --techniques compile,fused-optimizer"
    argv = ["explain", "--suite", "mlp", "--gpus=0", "--precisions", "amp-fp16", "--out", "x", "--quick"]
    edit_run(run.folder, lambda run: run["request"].update(argv=argv))
    command = f"python run_bench.py --suite mlp --gpus=0 {words}"
    assert f"`{command}`" in reporting.next_step(run.folder, reporting.advice_of(run.folder))
    parse(command.split()[2:])


def test_the_next_step_after_modules_to_keep_were_found_measures_what_that_costs(tmp_path, monkeypatch):
    run = RunBuilder(tmp_path / "run").speed()
    edit_run(run.folder, lambda run: run["request"].update(phases=["layers"]))
    found = {"amp-bf16:keep=head.*": "amp-bf16"}
    monkeypatch.setattr("bench.phases.layers.next_step.kept_names", lambda _rows: found)
    command = "--phases memory,speed --precisions 'fp32,amp-bf16,amp-bf16:keep=head.*'`"
    assert command in reporting.next_step(run.folder, reporting.advice_of(run.folder))


def test_the_command_of_a_script_is_repeated_with_its_script():
    argv = [
        "script",
        "--inject",
        "fp32,amp-bf16",
        "--quick",
        "--out",
        "x",
        "--",
        "train.py",
        "--epochs",
        "3",
        "--out",
        "y",
    ]
    command = repeated({"argv": argv})
    assert command == "`python run_bench.py script --inject fp32,amp-bf16 -- train.py --epochs 3 --out y`"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("layers --suite mlp --precision amp-bf16 --quick --out x", "layers --suite mlp --precision amp-bf16"),
        ("--suite mlp --quick --ladder --techniques compile --within=90s", "--suite mlp --ladder --techniques compile"),
        ("script --quick --inject fp32,amp-bf16 -- a.py --quick", "script --inject fp32,amp-bf16 -- a.py --quick"),
    ],
)
def test_what_quick_left_out_is_measured_by_the_same_command_without_it(words, expected):
    assert at_length({"argv": words.split()}) == f"`python run_bench.py {expected}`"


def suggested(folder: Path) -> set[str]:
    """The options that are named as a run's next step."""
    return set(re.findall(r"--[a-z-]+(?: [\d,]+)?", reporting.next_step(folder)))


def test_the_next_step_is_one_that_the_run_has_a_use_for(tmp_path):
    timed = RunBuilder(tmp_path / "timed").speed()
    assert suggested(timed.folder) == {"--rigorous"}
    edit_run(timed.folder, lambda run: run["request"].update(protocol=asdict(RIGOROUS)))
    assert suggested(timed.folder) == set()
    assert suggested(RunBuilder(tmp_path / "memory").memory("fp32", 10).folder) == set()
    trained = RunBuilder(tmp_path / "trained").train("fp32", [90.0] * 2).train("amp-bf16", [90.0] * 2)
    assert suggested(trained.folder) == {"--resume", "--seeds 0,1,2,3,4"}
    enough = RunBuilder(tmp_path / "enough").train("fp32", [90.0] * 5).train("amp-bf16", [90.0] * 5)
    assert suggested(enough.folder) == set()


def test_only_what_may_end_otherwise_is_to_be_tried_again(tmp_path):
    run = RunBuilder(tmp_path / "run").lost("memory", "fp32", "oom").lost("memory", "amp-bf16", "oom")
    assert suggested(run.folder) == {"--batch-sizes"}
    assert suggested(run.lost("train", "fp32", "failed").folder) == {"--resume"}


# One process at a time writes to a run's folder.

HOLD = "import sys, time; from pathlib import Path; from bench.run.folder import locked\n"
HOLD += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


@pytest.fixture
def owner(tmp_path):
    """A process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_that_another_process_holds_is_refused_until_that_has_ended_in_whatever_way(tmp_path, owner):
    with pytest.raises(UsageError, match=f"in use by process {owner.pid} on .*{LOCK}"), locked(tmp_path):
        pass
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().split()[0] == str(os.getpid())
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize(("text", "named"), [("71\nnode-7\n12\n", "process 71 on node-7"), ("", "is in use. ")])
def test_an_owner_on_another_host_or_of_no_name_is_refused_with_the_name_of_the_file(tmp_path, text, named):
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(UsageError, match=f"{named}.*'{tmp_path / LOCK}'"), locked(tmp_path):
        pass
    assert (tmp_path / LOCK).read_text() == text
