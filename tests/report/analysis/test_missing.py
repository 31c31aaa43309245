"""What could not be measured is said once, whatever the number of suites and batch sizes."""

from bench.report.analysis.missing import sentences, without_unsupported
from bench.report.reading.load import load
from tests.report.builders import RunBuilder


def test_what_a_device_lacks_is_said_once_and_what_did_not_fit_from_which_batch_on(tmp_path):
    run = RunBuilder(tmp_path / "run")
    for batch in (64, 128, 256):
        run.speed(batch=batch).lost("speed", "tf32", "unsupported", "no TF32", batch=batch)
    for batch in (512, 1024):
        for name in ("fp32", "amp-bf16"):
            run.lost("memory", name, "oom", batch=batch)
    assert sentences(run.summary(), load([run.folder]).trials) == [
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
    run = RunBuilder(tmp_path / "run").speed().train("mxfp8:emulated=on", [90.0])
    run.lost("speed", "mxfp8:emulated=on", "unsupported", "it is emulated").lost("speed", "mxfp8", "unsupported")
    run.lost("train", "fp8-rowwise:emulated=on", "unsupported", "needs torchao")
    assert sentences(run.summary(), load([run.folder]).trials) == [
        "fp8-rowwise:emulated=on: not on Hopper.",
        "mxfp8: not on Hopper.",
    ]
