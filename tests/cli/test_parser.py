import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import bench
import run_bench
from bench.cli.parser import QUICK, RIGOROUS, parse
from bench.spec.errors import UsageError
from tests.conftest import call

ROOT = Path(__file__).resolve().parents[2]


def parse_words(words):
    return parse(shlex.split(words))


def parse_mlp(words=""):
    return parse_words(f"--suite mlp {words}")


def test_words_become_a_request(tmp_path):
    request = parse_words(
        "--suite resnet50,vit_b_16 --gpus 0,1 --precisions fp32,amp-bf16 --batch-sizes 64,128,64 "
        "--epochs 5 --seeds 0,1,2 --phases speed,train --set lr=0.2 --target-ci 0.5% "
        f"--time-budget 2m --clip-grad 1.0 --data folder:{tmp_path}"
    )
    assert request.suites == ("resnet50", "vit_b_16")
    assert request.gpus == ("0", "1")
    assert request.precisions == ("fp32", "amp-bf16")
    assert request.batch_sizes == (64, 128)
    assert request.epochs == 5
    assert request.seeds == (0, 1, 2)
    assert request.phases == ("speed", "train")
    assert request.parameters == (("lr", "0.2"),)
    assert request.protocol.target_ci == 0.005
    assert request.protocol.time_budget_s == 120
    assert request.clip_grad == 1.0
    assert parse_mlp("--quick").protocol == QUICK
    assert parse_mlp("--rigorous").protocol == RIGOROUS
    assert parse_mlp("--phases speed --seeds 4").seeds == (4,)  # one seed is for all phases
    largest = parse_mlp("--batch-sizes 64,max")
    assert largest.batch_sizes == (64,)
    assert largest.largest_batch


@pytest.mark.parametrize(
    ("words", "phases"), [("--quick", ("explain",)), ("--phases energy", ("energy", "explain"))]
)
def test_explain_is_a_run_with_its_phases_and_is_repeated_as_one(words, phases):
    request = parse_words(f"explain --suite mlp {words}")
    assert request.phases == phases
    assert parse(request.argv) == request


@pytest.mark.parametrize("named", ["fp32", "amp-fp16,amp-bf16"])
def test_explain_refuses_precisions_that_leave_nothing_to_compare(named):
    with pytest.raises(UsageError, match="name both in --precisions"):
        parse_words(f"explain --suite mlp --precisions {named}")
    parse_words("explain --suite mlp --precisions fp32,amp-fp16")


def test_explain_takes_folders_or_goes_on_with_a_run():
    folders = parse_words("explain results/a results/b").runs
    assert folders == [Path("results/a"), Path("results/b")]
    assert parse_words("explain --resume results/a").resume == Path("results/a")


def test_precisions_with_options_are_split_at_the_right_commas_and_named_canonically():
    words = (
        "fp32, amp-fp16:growth_interval=200, "
        "init_scale=1024.0,fp16-master:scale=128,amp-fp16:scale=dynamic"
    )
    assert parse_mlp(f"--precisions '{words}'").precisions == (
        "fp32",
        "amp-fp16:init_scale=1024,growth_interval=200",
        "fp16-master:scale=128",
        "amp-fp16",
    )


@pytest.mark.parametrize(
    ("words", "phases"),
    [
        ("--quick", ("memory", "speed")),
        ("--quick --epochs 1", ("memory", "speed", "energy", "train")),
        ("--quick --clip-grad 1", ("memory", "speed", "energy", "train")),
        ("--phases speed", ("speed",)),
        ("--rigorous", ("memory", "speed", "energy", "train", "floor")),
        ("--rigorous --phases speed", ("speed", "floor")),
        ("--rigorous --phases floor,speed", ("floor", "speed")),
        ("--rigorous --phases memory", ("memory",)),
        ("--ladder", ("ladder",)),
        ("--ladder --phases train --seeds 0,1", ("train", "ladder")),
    ],
)
def test_phases_are_those_named_or_those_of_the_depth(words, phases):
    assert parse_mlp(words).phases == phases


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--batch-sizes 0",
            "--batch-sizes takes whole numbers from 1 to 999999999, and max, not '0'",
        ),
        ("--target-ci 1", "a share such as 1% or 0.01"),
        ("--target-ci 150%", "above 0 and up to 100%, not '150%'"),
        ("--batch-sizes 64,,128", "empty word"),
        ("--gpus gpu0", "--gpus must be GPU indices such as 0 or 0,1, cpu, or 0+1"),
        ("--precisions fp31", "Did you mean 'fp32'"),
        ("--precisions init_scale=8", "no precision 'init_scale=8'"),
        ("--phases sped", "Did you mean 'speed'"),
        ("--time-budget 0s", "--time-budget takes a time above 0"),
        ("--sweep width", "--sweep takes NAME=V1,V2, not 'width'"),
        ("--sweep width=3,4 --set width=5", "width is set twice"),
        ("--sweep batch_size=3,4 --batch-sizes 5", "batch_size is set twice"),
        ("--no-such", "no-such"),
        ("--on ray --gpus 0", "--gpus names GPUs of this machine"),
        ("--accelerators V100", "add --on ray"),
        ("--on ray --accelerators V100+A100", "not 'V100+A100'"),
        ("--phases speed --seeds 0,1", "--seeds is for training: add train to --phases"),
        ("--phases speed --from a.pt", "--from is for training: add train to --phases"),
        ("--gpu 0", "Unrecognized arguments: --gpu 0. Did you mean '--gpus'?"),
        ("--on ://x", "such as ray or ray://HOST:PORT, not '://x'"),
        ("--gpus V100", "--on ray --accelerators TYPES"),
        ("--gpus 0+1@2", "--on ray --accelerators TYPES"),
        ("--quick --rigorous", "not allowed with"),
        ("--out a --resume b", "give one of the two"),
        ("--weights none --set weights=imagenet", "weights is set twice"),
        (
            "--ladder --epochs 2 --seeds 0,1",
            "--epochs, --seeds is for training: add train to --phases",
        ),
        ("--clip-grad 0", "--clip-grad takes a norm above 0 such as 1.0, not"),
    ],
)
def test_an_option_that_means_nothing_gets_a_sentence(words, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse_mlp(words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "--suite is missing"),
        ("explain", "--suite is missing"),
        ("--resume results/x --gpus cpu --set lr=1", "to change --set, --gpus, start a new run"),
        ("repotr", "Did you mean 'report'"),
        ("train.py --epochs 2", "-- train.py. Available:"),
        ("compare a b --jsno", "See run_bench.py compare --help."),
    ],
)
def test_a_command_that_means_nothing_gets_a_sentence(words, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse_words(words)


@pytest.mark.parametrize(("word", "weights"), [("none", "none"), ("/x/../mine.pt", "/mine.pt")])
def test_weights_are_a_parameter_with_an_option_of_its_own(word, weights):
    assert parse_mlp(f"--weights {word}").parameters == (("weights", weights),)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--suite nothing.py", "/nothing.py'."),
        ("--resume nowhere", "There is no run in 'nowhere'"),
        ("--suite mlp --out /", "'/' exists already. Use another --out."),
        ("--suite mlp --out /dev/null", "'/dev/null' is a file. Name a folder."),
        ("compare old new --fail-over 3", "a share such as 1% or 0.01"),
        ("--suite resnet20 --weights none --gpus cpu", "No suite here has a parameter 'weights'."),
    ],
)
def test_usage_errors_are_2_with_one_line_and_write_nothing(tmp_path, words, part):
    done = call(*words.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_script_exits_with_what_main_returns(tmp_path):
    command = [sys.executable, str(ROOT / "run_bench.py"), "--suite", "mpl"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "run_bench: There is no suite 'mpl'. Did you mean 'mlp'? Available: "
    )


@pytest.mark.parametrize(
    ("option", "part"), [("--version", f"ampmeter {bench.__version__}\n"), ("--help", "--suite")]
)
def test_the_version_and_the_options_are_printed(capsys, option, part):
    with pytest.raises(SystemExit) as end:
        run_bench.main([option])
    assert end.value.code == 0
    assert part in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "run_bench.py", "list"]
    with subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1) as listing:
        listing.stdout.close()
        assert listing.stderr.read() == b""
    assert listing.returncode == 141
