"""What could not be measured is said once, whatever the number of suites and batch sizes."""

from dataclasses import replace

from bench.report.analysis.summary import summarise, without_unsupported
from bench.report.reading.load import load
from bench.report.tables.diagnostics import LONGEST, not_measured
from tests.report.builders import GPU, RunBuilder

NO_LAYER = "converts none of the model's linear layers (fc: 64 to 10, not multiples of 16)"


def said(*builders):
    runs = load([run.folder for run in builders])
    return not_measured(summarise(runs.trials), runs)


def test_what_a_device_lacks_is_said_once_and_what_did_not_fit_from_which_batch_on(tmp_path):
    run = RunBuilder(tmp_path / "run", device=replace(GPU, lacking=("tf32",)))
    for batch in (64, 128, 256):
        run.speed(batch=batch).lost("speed", "tf32", "unsupported", "no TF32", batch=batch)
    for batch in (512, 1024):
        for name in ("fp32", "amp-bf16"):
            run.lost("memory", name, "oom", batch=batch)
    assert said(run) == [
        "tf32: not on Hopper.",
        "mlp, out of memory: Test 1 from batch 512 (fp32, amp-bf16).",
    ]


def test_only_rows_that_nothing_was_measured_of_leave_the_tables(tmp_path):
    run = RunBuilder(tmp_path / "run").speed().lost("speed", "tf32", "unsupported").memory("amp-fp16", 60)
    run.lost("speed", "amp-fp16", "unsupported").lost("speed", "fp8", "unsupported", batch=64)
    kept = without_unsupported(run.summary())
    assert set(zip(kept["precision"], kept["batch_size"], strict=True)) == {
        *(("fp32", 128), ("amp-bf16", 128), ("amp-fp16", 128)),
        ("fp8", 64),  # or its batch size would have no row
    }


def test_an_emulated_precision_is_not_said_to_lack_what_it_was_not_meant_to_have(tmp_path):
    run = RunBuilder(tmp_path / "run", device=replace(GPU, lacking=("mxfp8",))).speed().train("mxfp8:emulated=on", [90])
    run.lost("speed", "mxfp8:emulated=on", "unsupported", "it is emulated").lost("speed", "mxfp8", "unsupported")
    name = "fp8-rowwise:emulated=on"
    run.lost("train", name, "unsupported", f"{name} needs torchao, which is not installed: pip install torchao")
    assert said(run) == [
        "mxfp8: not on Hopper.",
        f"{name}: needs torchao, which is not installed: pip install torchao.",
    ]


def test_what_is_not_the_hardwares_fault_has_its_own_reason_once(tmp_path):
    run = RunBuilder(tmp_path / "run", suite="resnet20").speed()
    for name in ("fp8-rowwise-gw-hp", "fp8-rowwise"):
        run.lost("memory", name, "unsupported", f"{name} {NO_LAYER}")
        run.lost("memory", name, "unsupported", f"{name} {NO_LAYER}", batch=256)
    run.lost("memory", "adamw8bit", "unsupported", "adamw8bit is an AdamW, and this suite trains with SGD")
    run.lost("memory", "te-fp8:scaling=current", "unsupported", "te-fp8: Transformer Engine says: not yet.")
    run.lost("memory", "tf32", "unsupported")
    assert said(run) == [
        f"fp8-rowwise, fp8-rowwise-gw-hp: {NO_LAYER}.",
        "adamw8bit: is an AdamW, and this suite trains with SGD.",
        "te-fp8:scaling=current: Transformer Engine says: not yet.",
        "tf32: unsupported.",
    ]


def test_a_reason_that_holds_somewhere_names_the_suite_the_device_and_the_phases(tmp_path):
    volta = replace(GPU, name="Tesla V100", architecture="Volta", lacking=("fp8-rowwise",))
    small, large = (RunBuilder(tmp_path / suite, suite=suite).speed("fp8-rowwise") for suite in ("mlp", "vit"))
    old = RunBuilder(tmp_path / "old", suite="mlp", device=volta).speed().lost("memory", "fp8-rowwise", "unsupported")
    assert said(small, old) == ["fp8-rowwise: not on Volta."]
    for name in ("fp32", "fp8-rowwise"):
        small.lost("energy", name, "unsupported", "NVML does not start")
    assert said(small) == ["energy of fp32, fp8-rowwise: NVML does not start."]
    assert said(small, large, old) == [
        "fp8-rowwise: not on Volta.",
        "mlp on Test 1, energy of fp32, fp8-rowwise: NVML does not start.",
    ]


def test_a_long_reason_is_cut(tmp_path):
    run = RunBuilder(tmp_path / "run").speed().lost("memory", "mxfp8", "unsupported", "mxfp8 " + "layer " * 100)
    (sentence,) = said(run)
    assert sentence.startswith("mxfp8: layer layer")
    assert len(sentence) < LONGEST + 20
