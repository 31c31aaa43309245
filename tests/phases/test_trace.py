"""The decomposition of a step, from traces that are made up and from a real one."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.profiler import record_function

from bench.phases.explain.observe import STEP, ModuleStack, open_profiler
from bench.phases.explain.trace import (
    decompose,
    kernel_class,
    on_matrix_units,
    operator_class,
    range_class,
)
from bench.spec.errors import UnsupportedError
from tests.traces import BF16, FP16, FP32, Trace


@pytest.fixture
def trace() -> Trace:
    """Return a trace of one step of 100 µs."""
    trace = Trace()
    trace.step(0, 100)
    return trace


def figures(trace, kind, **options):
    """Return the figures of a kind by name: of a CPU where its matrix types are given."""
    rows = decompose(trace.document(), gpu="matrix_types" not in options, **options)
    return {row["name"]: row["value"] for row in rows if row["kind"] == kind}


def classes(trace: Trace, **options) -> dict[str, float]:
    """Return the microseconds of each class that has any, over all steps."""
    steps = sum(event["name"] == "training step" for event in trace.events)
    classes_ms = figures(trace, "class", **options)
    return {work: round(1e3 * ms * steps, 6) for work, ms in classes_ms.items() if ms}


@pytest.mark.parametrize(
    ("class_of", "expected", "names"),
    [
        (range_class, "optimizer", ["Optimizer.step#SGD.step", "Optimizer.zero_grad#AdamW"]),
        (range_class, "communication", ["c10d::allreduce_", "nccl:all_reduce"]),
        (range_class, "loss scaling", ["aten::_amp_foreach_non_finite_check_and_unscale_"]),
        (operator_class, "normalisation and softmax", ["aten::native_batch_norm_backward"]),
        (operator_class, "elementwise", ["aten::add_", "aten::relu_", "aten::threshold_backward"]),
        (operator_class, "elementwise", ["triton_poi_fused_add_relu_0"]),
        (kernel_class, "communication", ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDev)"]),
        (kernel_class, "copies", ["Memcpy HtoD (Pinned -> Device)", "CopyHostToDevice"]),
        (kernel_class, "elementwise", ["FillBuffer", "void at::native::reduce_kernel<512>"]),
        (kernel_class, "optimizer", ["void at::native::multi_tensor_apply_kernel<X>"]),
        (
            kernel_class,
            "normalisation and softmax",
            ["void softmax_warp_forward<float>", "void cudnn::bn_fw_tr_1C11<float>"],
        ),
        (kernel_class, "casts and layout", ["void cudnn::engines::nchwToNhwcKernel<__half>"]),
        (kernel_class, "matrix units", ["Cijk_BBS_MI32x32x8x1"]),
        (kernel_class, "other products", ["ampere_sgemm_128x64_nn", "triton_tem_fused_mm_3"]),
    ],
)
def test_a_name_has_the_class_of_the_first_pattern_that_matches(class_of, expected, names):
    assert {class_of(name) for name in names} == {expected}


@pytest.mark.parametrize(
    ("kernel", "types", "expected"),
    [
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", [FP16], True),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", [FP32], True),
        ("cutlass_80_simt_sgemm_128x64_8x5_nt_align1", [FP32], False),
        ("nvjet_sm100_tst_mma_128x256x64_4_64x32_cta128x256x128_bz_TNT", [], True),
        ("nvjet_sss_128x256_64x4_1x2_h_bz_coopA_TNN", [FP32, FP32], False),
        ("triton_tem_fused_mm_3", [BF16, BF16], True),
        ("triton_tem_fused_mm_3", [FP32, FP32], False),
        ("maxwell_fp16_sgemm_fp16_64x64_nn", [FP16], False),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1", [FP16], True),
        ("Cijk_Ailk_Bljk_SB_MT128x64x8_SE_K1", [FP32], False),
    ],
)
def test_a_products_kernel_says_whether_it_ran_on_matrix_units(kernel, types, expected):
    assert on_matrix_units(kernel, types) is expected


def test_each_instant_of_a_gpus_steps_has_one_class():
    trace = Trace()
    trace.step(0, 50)
    trace.step(50, 50)
    multiply = trace.op("aten::addmm", 1, 5, BF16, BF16, BF16, sizes=[(8,), (4, 8), (8, 8)])
    trace.op("aten::copy_", 2, 1, BF16, BF16)
    cast = trace.op("aten::copy_", 10, 5, BF16, FP32)
    normal = trace.op("aten::native_batch_norm", 20, 5, FP32)
    odd = trace.op("mine::fold", 30, 5, FP32)
    trace.kernel("nvjet_tst_128x256_64x4_h_bz_TNN", 10, 20, multiply)  # 10 to 30
    trace.kernel(
        "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>", 30, 5, cast
    )
    trace.kernel("void batch_norm_collect_statistics_kernel", 40, 10, normal)  # idle before it
    trace.kernel("void fold(float*)", 60, 4, odd)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 45, 10)  # 45 to 55, of which 5 overlap
    # Ends after the steps' ranges.
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 100, 20, kind="gpu_memcpy")
    assert classes(trace) == {
        "matrix units": 20,
        "casts and layout": 5,
        "normalisation and softmax": 10,
        "communication": 5,
        "copies": 20,
        "unknown": 4,
        "idle": 10 + 5 + 5 + 36,
    }
    assert figures(trace, "step")["kernels"] == 3
    rows = {row["name"]: row for row in decompose(trace.document(), gpu=True)}
    assert rows["aten::addmm"] == {
        "kind": "operator",
        "name": "aten::addmm",
        "work": "matrix units",
        "module": "",
        "detail": "8 4x8 8x8",
        "dtype": BF16,
        "value": 0.01,
    }


def test_the_optimizers_kernels_are_its_own_whatever_launches_them(trace):
    trace.range("Optimizer.step#SGD.step", 10, 50)
    add = trace.op("aten::_foreach_add_", 12, 5, FP32)
    copy = trace.op("aten::copy_", 20, 5, BF16, FP32)
    scale = trace.op("aten::_amp_update_scale_", 70, 5, FP32)
    for start, by in ((20, add), (40, copy), (80, scale)):
        trace.kernel("void at::native::vectorized_elementwise_kernel<4>", start, 10, by)
    assert classes(trace) == {"optimizer": 20, "loss scaling": 10, "idle": 70}


@pytest.mark.parametrize(("read", "waited_us"), [(26, 20), (84, 0)])
def test_a_gpu_waits_for_loss_scaling_after_the_host_has_read_its_check_and_for_nothing_else_read(
    trace, read, waited_us
):
    check = trace.op("aten::_amp_foreach_non_finite_check_and_unscale_", 10, 5, FP32)
    trace.op("aten::_local_scalar_dense", read, 8, FP32)
    trace.range("Optimizer.step#SGD.step", 40, 30)
    add = trace.op("aten::_foreach_add_", 45, 5, FP32)
    # To 28.
    trace.kernel("multi_tensor_apply_kernel<amp_non_finite_check_and_unscale_cuda_>", 12, 16, check)
    trace.kernel("Memcpy DtoH (Device -> Pageable)", 28, 2, kind="gpu_memcpy")
    trace.kernel("multi_tensor_apply_kernel<X>", 50, 20, add)
    trace.kernel("multi_tensor_apply_kernel<X>", 80, 10, add)
    assert 1e3 * figures(trace, "step")["scaling wait"] == pytest.approx(waited_us)


CAST = [("aten::to", FP32), ("aten::_to_copy", FP32), ("aten::copy_", FP32, FP32)]


@pytest.mark.parametrize(
    ("operators", "kernel", "kind", "expected"),
    [
        # A copy is between host and device by its own name, whatever asked for it.
        (CAST, "Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "copies"),
        (CAST[-1:], "Memcpy DtoD (Device -> Device)", "gpu_memcpy", "casts and layout"),
        # Filling memory is no copy.
        ([("aten::zero_", FP32)], "Memset (Device)", "gpu_memset", "elementwise"),
        # In a graph no operator is known, and names decide.
        ([], "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", "kernel", "matrix units"),
        ([], "triton_poi_fused_convolution_relu_0", "kernel", "elementwise"),
        # A compiled product has the types of its operator.
        (
            [("triton_tem_fused_mm_3", BF16, BF16)],
            "triton_tem_fused_mm_3",
            "kernel",
            "matrix units",
        ),
    ],
)
def test_a_kernels_class_is_that_of_its_operators_and_of_its_name(
    trace, operators, kernel, kind, expected
):
    by = None
    for depth, (name, *types) in enumerate(operators):
        by = trace.op(name, 1 + depth, 20 - 2 * depth, *types)
    trace.kernel(kernel, 30, 40, by, kind)
    assert classes(trace) == {expected: 40, "idle": 60}


def test_what_checkpointing_computes_again_belongs_to_its_module_and_so_does_its_backward_pass(
    trace,
):
    trace.range("autograd::engine::evaluate_function: Checkpoint", 20, 30)
    trace.events[-1]["args"] = {"Sequence number": 7, "Fwd thread id": 1}
    trace.range("module: body", 25, 20)
    trace.op("aten::relu", 26, 8, FP32)
    trace.events[-1]["args"] |= {"Sequence number": 9}
    trace.op("aten::threshold_backward", 50, 20, FP32, FP32)
    trace.events[-1]["args"] |= {"Sequence number": 9, "Fwd thread id": 1}
    rows = decompose(trace.document(), gpu=False)
    modules = {row["name"]: row["module"] for row in rows if row["kind"] == "operator"}
    assert modules == {"aten::relu": "body", "aten::threshold_backward": "body"}
    assert figures(trace, "step", matrix_types=frozenset())["recomputed"] == pytest.approx(0.008)


def test_backward_is_traced_from_its_own_thread(trace):
    trace.range("autograd::engine::evaluate_function: ConvolutionBackward0", 10, 30, thread=2)
    by = trace.op("aten::convolution_backward", 12, 20, FP16, FP16, FP16, thread=2)
    trace.kernel("sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32", 20, 30, by)
    trace.kernel("void cudnn::engines_precompiled::nchwToNhwcKernel<__half>", 50, 10, by)
    assert classes(trace) == {"matrix units": 30, "casts and layout": 10, "idle": 60}


def test_on_a_cpu_an_operator_has_its_own_time_and_bookkeeping_is_idle(trace):
    trace.op("aten::linear", 10, 50, FP32, FP32, FP32)
    trace.op("aten::to", 12, 10, FP32)
    trace.op("aten::_to_copy", 13, 8, FP32)
    trace.op("aten::empty_strided", 14, 2)
    trace.op("aten::copy_", 17, 3, BF16, FP32)
    trace.op("aten::addmm", 25, 30, BF16, BF16, BF16)
    trace.op("aten::copy_", 27, 5, BF16, BF16)  # the bias, a part of the product
    trace.op("aten::view", 65, 5, FP32)
    trace.op("aten::relu", 70, 10, FP32)
    trace.op("aten::clamp_min", 71, 8, FP32)
    trace.op("mine::fold", 85, 5, FP32)
    expected = {
        "casts and layout": 10,
        "other products": 40,
        "elementwise": 10,
        "unknown": 5,
        "idle": 35,
    }
    assert classes(trace, matrix_types=frozenset()) == expected
    fast = classes(trace, matrix_types=frozenset({BF16}))
    assert (fast["matrix units"], fast["other products"]) == (30, 10)


def test_a_gpus_trace_without_kernels_is_refused(trace):
    trace.op("aten::mm", 10, 5, FP32, FP32)
    with pytest.raises(UnsupportedError, match="no kernels"):
        decompose(trace.document(), gpu=True)


def test_a_real_step_has_its_operators_with_their_modules(tmp_path):
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.LayerNorm(256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(torch.ones(64, 256))
        out.float().square().mean().backward()
        optimizer.step()

    step()
    marked = ModuleStack(marked=True)
    with open_profiler(gpu=False) as profiler, marked, record_function(STEP):
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    classes_ms, products = {}, set()
    for row in decompose(trace, gpu=False, matrix_types=frozenset()):
        if row["kind"] == "class":
            classes_ms[row["name"]] = row["value"]
        elif row.get("work") == "other products":
            products.add((row["name"], row["module"], row["dtype"]))
    assert classes_ms.pop("unknown") < 0.1 * sum(classes_ms.values())
    absent = {"matrix units", "communication", "copies", "loss scaling"}
    assert {work for work, ms in classes_ms.items() if ms == 0} == absent
    # Of the last layer, forward; and of both, backward.
    for product in (("aten::addmm", "2"), ("aten::mm", "2"), ("aten::mm", "0")):
        assert (*product, BF16) in products
