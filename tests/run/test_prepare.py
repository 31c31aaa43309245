"""What a run is warned of, or refused for, before it starts."""

from dataclasses import replace

import pytest

from bench.cli.parser import parse
from bench.run.prepare import prepare, warn_of_emulation, warn_of_idle_techniques
from bench.spec.errors import UsageError
from bench.spec.trial import Request
from tests.planning.test_max_batch import Surveyed

MLP = ["--suite", "mlp", "--data", "synthetic", "--gpus", "cpu"]


@pytest.mark.parametrize(
    ("asked", "ending"),
    [
        (
            {},
            "amp-bf16 is left out, so that fp32 has nothing to be compared with; --precisions fp32,amp-bf16 names it.",
        ),
        ({"phases": ("ladder", "ladder_memory")}, "amp-bf16 is left out; --precisions fp32,amp-bf16 names it."),
        ({"precisions": ("fp32", "amp-bf16")}, "amp-bf16 will be slow."),
    ],
)
def test_emulated_bfloat16_is_warned_of_with_what_becomes_of_it(machine, cpu, asked, ending):
    slow = replace(machine, devices=(replace(cpu, fp32_gflops=100.0, bf16_gflops=3.0),))
    (warning,) = warn_of_emulation(slow, Request(**asked))
    assert warning.endswith(f"GFLOP/s, and 100 in fp32. {ending}")


def test_techniques_of_the_input_pipeline_change_nothing_outside_training():
    request = Request(phases=("speed", "train"), techniques=("prefetcher",))
    (one,) = warn_of_idle_techniques(request)
    assert one.startswith("prefetcher changes how batches reach the device in training; speed: measured on")
    (two,) = warn_of_idle_techniques(replace(request, techniques=("non-blocking", "prefetcher")))
    assert two.startswith("non-blocking and prefetcher change how")


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (["--ladder", "--precisions", "fp32,tf32"], "no mixed precision is named, so it stays there."),
        (["--ladder", "--precisions", "tf32,fp32,amp-fp16"], "goes on in amp-fp16."),
        (["--ladder", "--precisions", "fp32,amp-fp16"], None),
        (["--precisions", "fp32,tf32", "--phases", "memory"], None),
    ],
)
def test_tf32_is_warned_to_be_no_step_of_a_ladder(machine, words, ending):
    warnings = [text for text in prepare(parse([*MLP, *words]), Surveyed(machine)).warnings if "ladder" in text]
    start = "The ladder has no step of tf32: it starts at IEEE fp32, and "
    assert warnings == ([] if ending is None else [start + ending])


def test_a_ladder_to_several_mixed_precisions_is_refused_before_anything_is_prepared():
    with pytest.raises(UsageError, match=r"^A ladder climbs to one mixed precision: name one of amp-bf16, fp8 in"):
        prepare(parse([*MLP, "--ladder", "--precisions", "fp32,amp-bf16,fp8"]), None)
