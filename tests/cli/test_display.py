import io
import re
from dataclasses import replace

import pytest

from bench.cli.display import LiveDisplay, describe_results, show_plan
from bench.phases.inference import Inference
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.phases.train import Training
from bench.planning.plan import Plan
from bench.results.records import Operations, Progress, Sample, TrialResult
from bench.spec.request import Request
from tests.derived import gained

SPEED = Speed(steady=True, warmup_steps=5, switch_warmup_steps=1, block_steps=1, step_ms=2.5)
ARM = replace(SPEED, step_ms=1.25, rounds=20, **gained(2.0, within=0.05))


def filled(kind, **given):
    """Return a row of which nothing but some fields is known."""
    return kind(**{**dict.fromkeys(kind.__slots__), **given})


FORWARD = filled(Inference, latency_p50_ms=1.5, inference_samples_per_s=812.5)
FASTER = replace(
    FORWARD, inference_speedup=2.0, inference_speedup_low=1.9, inference_speedup_high=2.1
)
TRAINING = filled(Training, time_per_epoch_s=3.0, train_loss=0.5, test_accuracy_pct=81.25)


@pytest.mark.parametrize(
    ("phase", "precision", "status", "figures", "text"),
    [
        ("speed", "fp32", "ok", {"row": SPEED}, "fp32 2.5 ms"),
        (
            "speed",
            "amp-bf16",
            "ok",
            {"row": ARM},
            "amp-bf16 1.25 ms, 2.000× as fast [1.902, 2.103]",
        ),
        ("speed", "fp32", "unconverged", {"row": SPEED}, "fp32 2.5 ms (unconverged)"),
        (
            "speed",
            "fp32",
            "ok",
            {"row": SPEED, "detail": "waited for data"},
            "fp32 2.5 ms (waited for data)",
        ),
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
    assert describe_results(phase, [TrialResult(arm=precision, status=status, **figures)]) == text


def test_a_speedup_over_products_of_another_type_says_so():
    operations = Operations(compute_dtypes="bfloat16:100%", other_modules="middle")
    results = [
        TrialResult(arm="fp32", status="ok", row=SPEED, operations=operations),
        TrialResult(arm="amp-bf16", status="ok", row=ARM, operations=operations),
    ]
    assert describe_results("speed", results) == (
        "fp32 2.5 ms, but computed 100 % of its products in bfloat16 (middle); "
        "amp-bf16 1.25 ms, 2.000× as fast [1.902, 2.103]"
    )


def test_a_terminal_shows_the_trial_the_time_left_and_what_each_gpu_does(tiny_trial, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("bench.cli.display.REDRAW_S", 0.0)
    display = LiveDisplay()
    display.begin(tiny_trial, 1, 1, 30.0)
    readings = {"utilization_pct": 98.0, "temperature_c": 61.0, "power_w": 350.4}
    samples = [
        Sample(time_s=0.0, placement="1", uuid="b", **readings),
        Sample(time_s=0.0, placement="0", uuid="a"),
    ]
    display.progress(Progress(text="step 1"), samples)
    display.end(tiny_trial, [TrialResult(arm="fp32", status="oom", detail="too big")])
    display.close()
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue())
    assert "[1/1] tiny-cpu-b4-memory-fp32-r0: fp32 oom: too big" in shown
    for line in ("step 1", "GPU 1, 98 %, 61°C, 350 W", "GPU 0", "about 30 s left in all"):
        assert line in shown


def test_the_plan_says_where_what_and_how_long(tiny_trial, machine, capsys):
    memory = replace(tiny_trial, estimate_s=10.0)
    train = replace(tiny_trial, phase="train", epochs=3, estimate_s=106.0)

    def shown(*trials, left=None, **asked):
        plan = Plan(trials=trials)
        show_plan(plan, left or plan, machine, ["Mind the gap."], Request(**asked))
        return capsys.readouterr().out

    text = shown(memory, train, within_s=300.0)
    assert "cpu: Test CPU (CPU); torch 2.15" in text
    assert "Without --gpus: every GPU" in text
    assert "Warning: Mind the gap." in text
    assert "tiny on cpu: fp32; batch 4; trained on synthetic, epochs: 3" in text
    assert text.endswith(
        "Trials: 2, about 2 min in all; --within ends it in 5 min, report included\n"
    )
    assert "; left: 0, about 4 s" in shown(memory, train, left=Plan(trials=()))
    assert "Trials: 2, an unknown time in all" in shown(memory, replace(train, estimate_s=None))
