import io
from dataclasses import replace

import pytest

from bench.cli.display import LiveDisplay, describe_gpu, describe_results, describe_trial, show_plan
from bench.phases.inference import Inference
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.phases.train import Training
from bench.planning.plan import Plan
from bench.results.records import Device, Operations, Progress, Sample, TrialResult
from tests.arms import arms
from tests.derived import gained

SPEED = Speed(steady=True, warmup_steps=5, switch_warmup_steps=1, block_steps=1, step_ms=2.5)
ARM = replace(SPEED, step_ms=1.25, rounds=20, **gained(2.0, within=0.05))
FORWARD = Inference(**dict.fromkeys(Inference.__slots__) | {"latency_p50_ms": 1.5, "inference_samples_per_s": 812.5})
FASTER = replace(FORWARD, inference_speedup=2.0, inference_speedup_low=1.9, inference_speedup_high=2.1)
LEARNT = {"time_per_epoch_s": 3.0, "train_loss": 0.5, "test_accuracy_pct": 81.25}
TRAINING = Training(**dict.fromkeys(Training.__slots__) | LEARNT)


@pytest.mark.parametrize(
    ("phase", "precision", "status", "figures", "text"),
    [
        ("speed", "fp32", "ok", {"row": SPEED}, "fp32 2.5 ms"),
        ("speed", "amp-bf16", "ok", {"row": ARM}, "amp-bf16 1.25 ms, 2.000× as fast [1.902, 2.103]"),
        ("speed", "fp32", "unconverged", {"row": SPEED}, "fp32 2.5 ms (unconverged)"),
        ("speed", "fp32", "ok", {"row": SPEED, "detail": "waited for data"}, "fp32 2.5 ms (waited for data)"),
        ("memory", "fp32", "ok", {"row": MemoryPeak()}, "peak unknown"),
        ("memory", "fp32", "ok", {"row": MemoryPeak(peak_allocated_bytes=2**30)}, "peak 1,024 MiB"),
        ("memory", "fp32", "ok", {"row": MemoryPeak(peak_allocated_bytes=2**18)}, "peak 0.25 MiB"),
        ("train", "fp32", "ok", {"row": TRAINING}, "3.00 s/epoch, loss 0.5000, 81.25 % right"),
        ("inference", "fp32", "ok", {"row": FORWARD}, "fp32 812.5 samples/s, one sample in 1.5 ms"),
        (
            "inference",
            "bf16",
            "ok",
            {"row": FASTER},
            "bf16 812.5 samples/s, 2.000× as fast [1.900, 2.100], one sample in 1.5 ms",
        ),
        ("numerics", "fp32", "ok", {"detail": "loss 2.3 at first"}, "fp32 ok: loss 2.3 at first"),
        ("memory", "fp32", "oom", {"detail": "too big"}, "fp32 oom: too big"),
    ],
)
def test_a_result_is_told_in_a_line(phase, precision, status, figures, text):
    assert describe_results(phase, [TrialResult(precision=precision, status=status, **figures)]) == text


def test_a_speedup_over_products_of_another_type_says_so():
    operations = Operations(compute_dtypes="bfloat16:100%", other_modules="middle")
    results = [
        TrialResult(precision=name, status="ok", row=speed, operations=operations)
        for name, speed in (("fp32", SPEED), ("amp-bf16", ARM))
    ]
    assert describe_results("speed", results) == (
        "fp32 2.5 ms, but computed 100 % of its products in bfloat16 (middle); "
        "amp-bf16 1.25 ms, 2.000× as fast [1.902, 2.103]"
    )


CARD = {"kind": "cuda", "name": "Card", "architecture": "Hopper"}


def test_a_gpus_state_is_told_as_gpustat_does():
    sample = Sample(time_s=0.0, placement="1", uuid="GPU-1", temperature_c=61.0, utilization_pct=98.0, power_w=350.4)
    board = Device(placement="1", uuid="GPU-1", power_limit_w=700.0, memory_total_bytes=80 * 2**30, **CARD)
    used = replace(sample, memory_used_bytes=123 * 2**20)
    assert describe_gpu(used, board) == "[1] Card |  61°C,  98 %,  350 / 700 W |   123 / 81920 MiB"
    joint = Device(placement="0+1", uuids=("GPU-0", "GPU-1"), memory_total_bytes=160 * 2**30, names=("Card",), **CARD)
    assert describe_gpu(sample, joint) == "[1] Card |  61°C,  98 %,  350 /  ?? W |    ?? /    ?? MiB"


def test_a_terminal_shows_the_trial_the_time_left_and_a_line_for_each_gpu(tiny_trial, monkeypatch):
    boards = [Device(placement=name, uuid=f"GPU-{name}", **CARD) for name in ("0", "1")]
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("bench.cli.display.REDRAW_S", 0.0)
    display = LiveDisplay(boards)
    display.begin(tiny_trial, 1, 1, 30.0)
    samples = [Sample(time_s=0.0, placement=name, uuid=f"GPU-{name}") for name in ("1", "0")]
    display.progress(Progress(text="step 1"), samples)
    display.progress(Progress(text=""), ())
    assert [line.partition(" |")[0] for line in display.loads()] == ["[0] Card", "[1] Card"]
    display.close()
    for shown in ("tiny, cpu", "step 1", "about 30 s left", "[1] Card"):
        assert shown in screen.getvalue()


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "memory (fp32)"),
        ({"phase": "speed", "arms": arms("fp32", "amp-bf16"), "replicate": 1}, "speed (process 2)"),
        ({"ablation": True}, "memory of an ablation (fp32)"),
        ({"phase": "train", "epochs": 3}, "train (fp32, seed 0, 3 epochs)"),
        ({"phase": "train", "epochs": 1}, "train (fp32, seed 0, 1 epoch)"),
    ],
)
def test_a_trial_is_named_by_what_it_does(tiny_trial, changed, name):
    assert describe_trial(replace(tiny_trial, **changed)) == f"tiny, cpu, batch 4, {name}"


def test_a_trial_of_a_variant_is_named_with_its_parameters(tiny_trial):
    suite = replace(tiny_trial.cell.suite, parameters=(("trainer", "plain"), ("lr", 0.1)))
    variant = replace(tiny_trial, cell=replace(tiny_trial.cell, suite=suite))
    assert describe_trial(variant) == "tiny (trainer=plain lr=0.1), cpu, batch 4, memory (fp32)"


@pytest.fixture
def shown(tiny_trial, machine, capsys):
    """Return a function that shows a plan of memory and of training, each by its epochs, and returns what it prints."""

    def shown(*epochs, seconds, warnings=(), default_device=False):
        train = [replace(tiny_trial, phase="train", epochs=count) for count in epochs]
        plan = Plan(trials=(tiny_trial, *train), seconds=seconds)
        show_plan(plan, machine, warnings, default_device=default_device)
        return capsys.readouterr().out

    return shown


def test_the_plan_says_where_what_and_how_long(shown):
    text = shown(3, seconds=(10.0, 106.0), warnings=["Mind the gap."], default_device=True)
    assert "cpu: Test CPU (CPU); torch 2.15" in text
    assert "No --gpus was given: measuring on the CPU, because there is no GPU." in text
    assert "Warning: Mind the gap." in text
    assert "tiny on cpu: fp32; batch 4; 3 epochs on synthetic; about 1.9 min" in text
    assert text.endswith("2 trials, about 2 min in all\n")
    assert "2 trials, an unknown time in all" in shown(3, seconds=(10.0, None))
    assert "; 1 epoch on synthetic; about 9 s" in shown(1, seconds=(0.0, 9.0))
    assert "\n1 trial, an unknown time in all" in shown(seconds=(None,))
