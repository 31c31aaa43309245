import subprocess
import sys
from pathlib import Path

import pytest

import bench
from bench.cli.parser import QUICK, RIGOROUS, parse
from bench.spec.errors import UsageError
from tests.conftest import call

ROOT = Path(__file__).resolve().parents[2]


def test_words_become_a_command(tmp_path):
    command = parse(
        [
            *("--suite", "resnet50,vit_b_16", "--gpus", "0,1", "--precisions", "32-true,bf16-mixed"),
            *("--batch-sizes", "64,128,64", "--epochs", "5", "--seeds", "0,1,2", "--phases", "speed,train"),
            *("--data", f"folder:{tmp_path}", "--set", "lr=0.2", "--target-ci", "0.5%", "--time-budget", "2m"),
        ]
    )
    assert command.suites == ("resnet50", "vit_b_16")
    assert command.gpus == ("0", "1")
    assert command.precisions == ("fp32", "amp-bf16")
    assert command.batch_sizes == (64, 128)
    assert (command.epochs, command.seeds, command.phases) == (5, (0, 1, 2), ("speed", "train"))
    assert command.parameters == (("lr", "0.2"),)
    assert (command.protocol.target_ci, command.protocol.time_budget_s) == (0.005, 120)


def test_precisions_with_options_are_split_at_the_right_commas_and_named_canonically():
    words = "fp32, 16-mixed:growth_interval=200, init_scale=1024.0,fp16-master:scale=128,amp-fp16:scale=dynamic"
    command = parse(["--suite", "mlp", "--precisions", words])
    assert command.precisions == (
        "fp32",
        "amp-fp16:init_scale=1024,growth_interval=200",
        "fp16-master:scale=128",
        "amp-fp16",
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], (None, False)), (["--batch-sizes", "64,128,max"], ((64, 128), True)), (["--batch-sizes", "max"], ((), True))],
)
def test_max_is_a_batch_size_beside_others_or_alone(words, expected):
    request = parse(["--suite", "mlp", *words])
    assert (request.batch_sizes, request.largest_batch) == expected


def test_quick_is_one_process_without_training_and_rigorous_is_ten():
    quick = parse(["--suite", "mlp", "--quick"])
    assert (quick.protocol, quick.phases) == (QUICK, ("memory", "speed"))
    assert "train" in parse(["--suite", "mlp", "--quick", "--epochs", "1"]).phases
    assert parse(["--suite", "mlp", "--rigorous"]).protocol == RIGOROUS


@pytest.mark.parametrize(
    ("phases", "expected"),
    [("speed", ("speed", "floor")), ("floor,speed", ("floor", "speed")), ("memory", ("memory",))],
)
def test_rigorous_times_fp32_against_itself_wherever_speed_is_timed(phases, expected):
    assert parse(["--suite", "mlp", "--rigorous", "--phases", phases]).phases == expected
    assert "floor" in parse(["--suite", "mlp", "--rigorous"]).phases
    assert "floor" not in parse(["--suite", "mlp", "--phases", "speed"]).phases


def test_seeds_are_refused_where_nothing_is_trained_but_one_is_for_all():
    for words in (["--phases", "speed"], ["--quick", "--phases", "memory"]):
        with pytest.raises(UsageError, match="--seeds is for training, and --phases leaves train out"):
            parse(["--suite", "mlp", *words, "--seeds", "0,1"])
        assert parse(["--suite", "mlp", *words, "--seeds", "4"]).seeds == (4,)
    for option in (["--seeds", "0,1"], ["--epochs", "2"]):
        with pytest.raises(UsageError, match="is for training, and a ladder trains with --phases train only"):
            parse(["--suite", "mlp", "--ladder", *option])
    assert parse(["--suite", "mlp", "--ladder", "--phases", "train", "--seeds", "0,1"]).seeds == (0, 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--suite is missing"),
        (
            ["--suite", "mlp", "--batch-sizes", "0"],
            "--batch-sizes takes whole numbers from 1 to 999999999, not '0'",
        ),
        (["--suite", "mlp", "--batch-sizes", "many"], "not 'many'"),
        (["--suite", "mlp", "--batch-sizes", "64,,128"], "empty word"),
        (["--suite", "mlp", "--epochs", "0"], "--epochs takes whole numbers from 1 to"),
        (["--suite", "mlp", "--gpus", "gpu0"], "--gpus must be GPU indices such as 0 or 0,1, cpu, or 0+1"),
        (["--suite", "mlp", "--precisions", "fp31"], "Did you mean 'fp32'"),
        (["--suite", "mlp", "--precisions", "init_scale=8"], "no precision 'init_scale=8'"),
        (["--suite", "mlp", "--precisions", "fp32,,tf32"], "empty word"),
        (["--suite", "mlp", "--phases", "sped"], "Did you mean 'speed'"),
        (["--suite", "mlp", "--target-ci", "tight"], "--target-ci takes a share"),
        (["--suite", "mlp", "--time-budget", "long"], "--time-budget takes a time"),
        (["--suite", "mlp", "--time-budget", "0s"], "--time-budget must be a time above 0"),
        (["--suite", "mlp", "--data", "mnist"], "--data must be cifar10"),
        (["--suite", "mlp", "--set", "width"], "--set takes NAME=VALUE"),
        (["--suite", "mlp", "--sweep", "width=16,16"], "--sweep width has a value twice in '16,16'"),
        (["--suite", "mlp", "--no-such"], "no-such"),
        (["--suite", "mlp", "--quick", "--rigorous"], "not allowed with"),
        (["--suite", "mlp", "--out", "a", "--resume", "b"], "give one of the two"),
        (["--resume", "results/x", "--gpus", "cpu", "--set", "lr=1"], "to change --set, --gpus, start a new run"),
        (["repotr"], "Did you mean 'report'"),
    ],
)
def test_a_word_that_means_nothing_gets_a_sentence(words, sentence):
    with pytest.raises(UsageError) as caught:
        parse(words)
    assert sentence in str(caught.value)


def script(*words, cwd):
    return subprocess.run(
        [sys.executable, str(ROOT / "run_bench.py"), *words], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--suite", "nothing.py"), "There is no suite file 'nothing.py'"),
        (("report", "nowhere"), "nowhere"),
        (("--resume", "nowhere"), "There is no run in 'nowhere'"),
        (("--suite", "mlp", "--gpus", "cpu", "--out", "/proc/none"), "/proc/none"),
        (("--suite", "mlp", "--out", "."), "exists already. Use --resume ."),
    ],
)
def test_usage_errors_are_2_with_one_line_and_write_nothing(tmp_path, words, part):
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_script_exits_with_what_main_returns(tmp_path):
    done = script("--suite", "mpl", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("run_bench: There is no suite 'mpl'. Did you mean 'mlp'? Available: ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_told(tmp_path):
    done = script("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"ampmeter {bench.__version__}\n")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    done = call("doctor", "--out", "file/inside", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "run_bench: 'file/inside' cannot be read or written: Not a directory.\n"


def test_help_and_list_do_not_import_torch(tmp_path):
    code = "import sys; from run_bench import main; main(['list']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "vit_b_16" in done.stdout
    assert "amp-bf16" in done.stdout
    assert "--suite" in script("--help", cwd=tmp_path).stdout


def test_options_of_training_are_read_and_make_a_quick_run_train():
    command = parse(["--suite", "mlp", "--quick", "--target-accuracy", "93.5%", "--clip-grad", "1.0"])
    assert (command.target_accuracy_pct, command.clip_grad) == (93.5, 1.0)
    assert "train" in command.phases
    assert parse(["--suite", "mlp", "--target-accuracy", "94"]).target_accuracy_pct == 94.0
    plain = parse(["--suite", "mlp", "--quick"])
    assert (plain.target_accuracy_pct, plain.clip_grad) == (None, None)


@pytest.mark.parametrize("word", ["0", "101", "high", "-5", "nan", "50%%", ""])
def test_a_target_that_no_accuracy_can_be_gets_a_sentence(word):
    with pytest.raises(UsageError, match=r"--target-accuracy takes a percentage above 0 and up to 100, such as 94%"):
        parse(["--suite", "mlp", f"--target-accuracy={word}"])


@pytest.mark.parametrize("word", ["0", "0.0", "-1", "inf", "some", ""])
def test_a_norm_that_nothing_can_be_clipped_to_gets_a_sentence(word):
    with pytest.raises(UsageError, match=r"--clip-grad takes a norm above 0 such as 1\.0, not"):
        parse(["--suite", "mlp", f"--clip-grad={word}"])


def test_a_target_that_no_test_set_can_tell_of_is_warned_of(tmp_path, tiny_file):
    words = ("--suite", str(tiny_file), "--gpus", "cpu", "--phases", "train", "--dry-run")
    assert "--target-accuracy" not in call(*words, cwd=tmp_path).stdout
    done = call(*words, "--target-accuracy", "90", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tiny is trained on synthetic data, which have no test set" in done.stdout


def test_weights_are_a_parameter_with_an_option_of_its_own(tmp_path):
    words = ("--suite", "intel_resnet18", "--weights")
    assert parse([*words, "none"]).parameters == (("weights", "none"),)
    assert parse([*words, f"{tmp_path}/x/../mine.pt"]).parameters == (("weights", str(tmp_path / "mine.pt")),)
    with pytest.raises(UsageError, match="give one of the two"):
        parse([*words, "none", "--set", "weights=imagenet"])


def test_weights_are_refused_where_no_suite_takes_them(tmp_path):
    done = call("--suite", "resnet20", "--weights", "none", "--gpus", "cpu", cwd=tmp_path)
    assert done.returncode == 2
    assert "No suite here takes initial weights." in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "run_bench.py", "list"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert (listing.stderr.read(), listing.wait()) == ("", 141)


def test_a_closed_output_is_no_error():
    command = f"'{sys.executable}' run_bench.py list >&-"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
