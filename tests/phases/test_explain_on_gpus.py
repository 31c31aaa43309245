"""Causes that only a GPU shows, from a trace in torch.profiler's format to the sentence that names
them.
"""

import pytest

from bench.phases.explain.trace import decompose
from tests.phases.test_explain_reasons import explained
from tests.traces import FP16, FP32, Trace

KERNELS = {
    FP32: "ampere_sgemm_128x64_nn",
    FP16: "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn",
}
"""The kernel of a product of even sizes, by type."""


def step_of(operator, dtype, kernels, *, sizes=((512, 512), (512, 512)), us=100, apart_us=0):
    """Return a trace of a step in which one module launches kernels, with pauses between them."""
    trace = Trace()
    trace.step(0, us)
    trace.range("module: video.0", 1, 8)
    by = trace.op(operator, 2, 6, dtype, dtype, sizes=sizes)
    length = us / len(kernels) - apart_us
    for number, name in enumerate(kernels):
        trace.kernel(name, number * (length + apart_us), length, by)
    return trace


def with_loss_scaling(trace):
    """Let the host read the check of the gradients before the optimizer's step; the GPU has no work
    meanwhile.
    """
    trace.step(100, 50)
    check = trace.op("aten::_amp_foreach_non_finite_check_and_unscale_", 102, 2, FP32)
    trace.kernel("multi_tensor_apply_kernel<amp_non_finite_check_and_unscale_cuda_>", 104, 6, check)
    trace.op("aten::_local_scalar_dense", 105, 15, FP32)
    trace.range("Optimizer.step#SGD.step", 122, 20)
    trace.kernel(
        "multi_tensor_apply_kernel<X>", 130, 20, trace.op("aten::_foreach_add_", 125, 4, FP32)
    )
    return trace


HEALTHY = step_of("aten::mm", FP16, [KERNELS[FP16]])
CASES = {
    "launch-bound": (
        step_of("aten::mm", FP16, 5 * [KERNELS[FP16]], apart_us=12),
        "waits for the host in 60 %",
    ),
    "no matrix units": (
        step_of(
            "aten::mm", FP16, ["maxwell_fp16_sgemm_fp16_64x64_nn"], sizes=((513, 64), (64, 513))
        ),
        "mm in video.0 with a size of 513, no multiple of 8 (0.10 ms)",
    ),
    # cuDNN has no algorithm for it: torch unfolds the input and multiplies
    "no matrix units, fallback": (
        step_of(
            "aten::slow_conv3d_forward",
            FP16,
            ["void at::native::vol2col_kernel<c10::Half>", "maxwell_fp16_sgemm_fp16_64x64_nn"],
        ),
        "slow_conv3d_forward in video.0",
    ),
    "loss scaling": (
        with_loss_scaling(step_of("aten::mm", FP16, [KERNELS[FP16]])),
        "leave the GPU idle for 13 %",
    ),
}


def reasons_of(arm):
    """Return the sentences on an arm's trace by their rules; in fp32 its products take 250 µs."""
    rows = []
    baseline = step_of("aten::mm", FP32, [KERNELS[FP32]], us=250)
    for precision, trace in (("fp32", baseline), ("amp-fp16", arm)):
        total_ms = 0.0
        for row in decompose(trace.document(), gpu=True):
            rows.append({"precision": precision, **row})
            if row["kind"] == "class":
                total_ms += row["value"]
        rows.append({"precision": precision, "kind": "step", "name": "timed", "value": total_ms})
    (explanation,) = explained(rows)
    return {reason.name: reason.sentence for reason in explanation.reasons}


@pytest.mark.parametrize("case", CASES)
def test_a_cause_in_a_gpus_trace_is_named_with_its_figures_and_no_other_is(case):
    trace, named = CASES[case]
    ((rule, sentence),) = reasons_of(trace).items()
    assert rule == case.partition(",")[0]
    assert named in sentence


def test_a_step_of_products_on_tensor_cores_has_no_cause():
    assert reasons_of(HEALTHY) == {}
