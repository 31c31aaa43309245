"""What a run is warned of before it starts."""

from dataclasses import replace

import pytest

from bench.planning.warnings import emulated, idle_techniques
from bench.spec.request import Request


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {},
            "amp-bf16 is left out, so that fp32 has nothing to be compared with; --precisions fp32,amp-bf16 names it.",
        ),
        ({"phases": ("ladder", "ladder_memory")}, "amp-bf16 is left out; --precisions fp32,amp-bf16 names it."),
        ({"precisions": ("fp32", "amp-bf16")}, "amp-bf16 will be slow."),
    ],
)
def test_a_cpu_without_fast_bfloat16_is_told_what_becomes_of_it(machine, cpu, asked, said):
    slow = replace(machine, devices=(replace(cpu, fp32_gflops=100.0, bf16_gflops=3.0),))
    (warning,) = emulated(slow, Request(suites=(), **asked))
    assert warning.endswith(f"GFLOP/s, and 100 in fp32. {said}")


def test_techniques_of_the_loader_are_said_to_change_nothing_else():
    asked = Request(suites=(), phases=("speed", "train"), techniques=("prefetcher",))
    (one,) = idle_techniques(asked)
    assert one.startswith("prefetcher changes how batches reach the device in training; speed: measured on")
    (two,) = idle_techniques(replace(asked, techniques=("non-blocking", "prefetcher")))
    assert two.startswith("non-blocking and prefetcher change how")
