import pytest
import torch

from bench import precision as switches
from bench.spec import PRECISIONS

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def leave_fp32_behind():
    yield
    switches.apply(PRECISIONS["fp32"])


def test_fp32_turns_tf32_off_everywhere_and_tf32_turns_it_on():
    for name, setting in (("tf32", "tf32"), ("fp32", "ieee"), ("amp-bf16", "ieee")):
        switches.apply(PRECISIONS[name])
        backends = torch.backends
        parts = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        parts += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
        assert {part.fp32_precision for part in parts} == {setting}
        read = switches.read_back(PRECISIONS[name], CPU)
        assert (read.fp32_matmul, read.fp32_conv) == (setting, setting)


def test_what_is_read_back_is_what_the_switch_is_and_not_what_was_asked():
    switches.apply(PRECISIONS["fp32"])
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    assert switches.read_back(PRECISIONS["fp32"], CPU).fp32_matmul == "bf16"


def test_the_older_interface_is_used_where_there_is_no_newer_one(monkeypatch):
    class Part:
        allow_tf32 = None

    class Backends:
        cuda = type("Cuda", (), {"matmul": Part()})
        cudnn = Part()

    monkeypatch.setattr(switches, "_backends", Backends)
    for name, on in (("tf32", True), ("fp32", False)):
        switches.apply(PRECISIONS[name])
        assert (Backends.cuda.matmul.allow_tf32, Backends.cudnn.allow_tf32) == (on, on)
        assert switches.read_back(PRECISIONS[name], CPU).fp32_matmul == ("tf32" if on else "ieee")


def test_the_probe_tells_ieee_from_ten_bits_of_mantissa(monkeypatch):
    switches.apply(PRECISIONS["fp32"])
    assert switches.matmul_error(CPU) < 2e-6
    exact = torch.Tensor.__matmul__

    def rounded(a, b):
        if a.dtype == torch.float64:
            return exact(a, b)
        return exact(*((t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for t in (a, b)))

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert 1e-4 < switches.matmul_error(CPU) < 1e-3


def test_autocast_computes_in_the_precisions_type():
    a = torch.randn(4, 4)
    for name, dtype in (("fp32", torch.float32), ("amp-bf16", torch.bfloat16), ("amp-fp16", torch.float16)):
        with switches.autocast(PRECISIONS[name], CPU):
            assert (a @ a).dtype == dtype


def test_only_amp_fp16_scales_its_loss():
    assert [name for name, p in PRECISIONS.items() if switches.grad_scaler(p, CPU).is_enabled()] == ["amp-fp16"]


@pytest.mark.parametrize(
    ("capability", "refused"),
    [
        ((3, 7), {"tf32", "amp-fp16", "amp-bf16"}),
        ((6, 1), {"tf32", "amp-bf16"}),
        ((7, 0), {"tf32", "amp-bf16"}),
        ((7, 5), {"tf32", "amp-bf16"}),
        ((8, 0), set()),
        ((12, 0), set()),
    ],
)
def test_each_generation_of_gpus_does_what_its_hardware_does(capability, refused):
    reasons = {n: switches.unsupported_reason(p, "cuda", capability) for n, p in PRECISIONS.items()}
    assert {name for name, reason in reasons.items() if reason} == refused
    assert all(f"sm_{capability[0]}{capability[1]}" in reasons[name] for name in refused)


def test_a_cpu_that_multiplies_in_ieee_is_told_to_have_no_tf32(monkeypatch):
    monkeypatch.setattr(switches, "matmul_error", lambda device: 2e-7)
    assert "IEEE" in switches.unsupported_reason(PRECISIONS["tf32"], "cpu", None)
    monkeypatch.setattr(switches, "matmul_error", lambda device: 3e-4)
    assert switches.unsupported_reason(PRECISIONS["tf32"], "cpu", None) is None
    assert switches.unsupported_reason(PRECISIONS["amp-fp16"], "cpu", None) is None
