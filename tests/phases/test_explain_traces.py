"""Planted causes on GPUs: traces that are made up, decomposed and explained as the explain phase's are."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from bench.phases.explain.reasons import Explanation, explanations
from bench.phases.explain.trace import decompose
from bench.report.reading.load import CELL
from tests.phases.test_explain_reasons import COLUMNS
from tests.traces import BF16, FP16, FP32, Trace

LENGTH = 1000.0
"""Microseconds of a step."""
GEMM = {
    FP32: "ampere_sgemm_128x64_nn",
    BF16: "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn",
    FP16: "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn",
}


class Gpu:
    """A step of kernels one after the other; what is left of its time is idle."""

    def __init__(self, dtype: str, length: float = LENGTH) -> None:
        self.trace, self.dtype, self.at = Trace(), dtype, 0.0
        self.trace.step(0, length)

    def run(self, op: str, kernel: str, us: float, *types: str, kind: str = "kernel", times: int = 1, gap: float = 0.0):
        """Run a kernel, some times in a row, each after a gap."""
        for _ in range(times):
            self.at += gap
            by = self.trace.op(op, self.at, 0.5, *types, sizes=[(64, 64)] * len(types))
            self.trace.kernel(kernel, self.at, us, by, kind)
            self.at += us
        return self

    def products(self, us: float, kernel: str = "") -> Gpu:
        return self.run("aten::mm", kernel or GEMM[self.dtype], us, self.dtype, self.dtype)

    def elementwise(self, us: float) -> Gpu:
        return self.run("aten::relu", "void at::native::vectorized_elementwise_kernel<4>", us, self.dtype)


Kernel = tuple[str, str, float, tuple[str, ...]]
"""An operator, its kernel, its time in µs, and the types of its operands."""


def step(
    fp32: tuple[float, float] = (700.0, 200.0),
    narrow: tuple[float, float] = (250.0, 110.0),
    *more: Kernel,
    idle: float = 100.0,
    only_narrow: bool = False,
    kernel: str = "",
) -> Callable[[str], Gpu]:
    """Return a function that makes a step in fp32 or in 16 bits.

    Args:
        fp32: µs of products and of elementwise operators in fp32.
        narrow: the same in 16 bits; as given they gain as they should.
        more: what else runs.
        idle: µs in which nothing runs.
        only_narrow: whether only the step in 16 bits has ``more``.
        kernel: of its products in 16 bits, if they do not run on matrix units.
    """

    def make(dtype: str) -> Gpu:
        products, rest = fp32 if dtype == FP32 else narrow
        others = () if only_narrow and dtype == FP32 else more
        gpu = Gpu(dtype, products + rest + idle + sum(us for _, _, us, _ in others))
        gpu.products(products, "" if dtype == FP32 else kernel).elementwise(rest)
        for op, name, us, types in others:
            gpu.run(op, name, us, *types, kind="gpu_memcpy" if "Memcpy" in name else "kernel")
        return gpu

    return make


def launching(dtype: str) -> Gpu:
    return Gpu(dtype).run("aten::mm", GEMM[dtype], 2, dtype, dtype, times=100, gap=8.0)


CAST = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>"
CHECK = "void at::native::multi_tensor_apply_kernel<amp_non_finite_check_and_unscale_cuda_>"
USUAL = (700.0, 200.0), (250.0, 110.0)
casting = step(*USUAL, ("aten::copy_", CAST, 400, (BF16, FP32)), only_narrow=True)
scaling = step(*USUAL, ("aten::_amp_foreach_non_finite_check_and_unscale_", CHECK, 60, (FP32,)), only_narrow=True)
without_matrix_units = step((700, 200), (420, 110), kernel="maxwell_fp16_sgemm_fp16_64x64_nn")
CAUSES: dict[str, Callable[[str], Gpu]] = {
    "launch-bound": launching,
    "no gain from products": step((700, 200), (680, 110)),
    "memory-bound": step((100, 850), (40, 430), idle=50),
    "casts": casting,
    "no matrix units": without_matrix_units,
    "copies": step(*USUAL, ("aten::copy_", "Memcpy HtoD (Pageable -> Device)", 400, (FP32, FP32))),
}


def explain(make: Callable[[str], Gpu], arm: str = "amp-bf16") -> Explanation:
    rows = []
    for precision, dtype in (("fp32", FP32), (arm, FP16 if "fp16" in arm else BF16)):
        share = decompose(make(dtype).trace.document(), gpu=True)
        figures = [("step", "timed", share.step_ms), ("step", "profiled", share.step_ms)]
        figures += [("step", "kernels", share.calls), *(("class", work, ms) for work, ms in share.ms.items())]
        for number in range(3):
            rows += [(precision, kind, name, number, "", "", value) for kind, name, value in figures]
    frame = pd.DataFrame(rows, columns=COLUMNS).assign(**dict.fromkeys([*CELL, "workload", "where"], "x"))
    (result,) = explanations(frame)
    return result


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_planted_in_a_gpus_trace_is_found_and_no_other(cause):
    assert [reason.rule for reason in explain(CAUSES[cause]).reasons] == [cause]


def test_loss_scaling_in_a_gpus_trace_is_found_and_the_same_wait_in_a_shorter_step_is_none():
    assert [reason.rule for reason in explain(scaling, arm="amp-fp16").reasons] == ["loss scaling"]
    assert explain(step(), arm="amp-fp16").reasons == []


def test_a_gpus_step_that_gains_as_it_should_needs_no_reason():
    result = explain(step())
    assert result.reasons == []
    assert result.speedup.center == pytest.approx(1000 / 460)
