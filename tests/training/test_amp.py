import sys
from types import ModuleType

import pytest
import torch

from bench.devices import capabilities
from bench.spec.precisions import PRECISIONS, parse_precision
from bench.training import amp

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def leave_fp32_behind():
    yield
    amp.apply(PRECISIONS["fp32"])


def test_fp32_turns_tf32_off_everywhere_and_tf32_turns_it_on():
    for name, setting in (("tf32", "tf32"), ("fp32", "ieee"), ("amp-bf16", "ieee")):
        amp.apply(PRECISIONS[name])
        backends = torch.backends
        parts = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        parts += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
        assert {part.fp32_precision for part in parts} == {setting}
        read = amp.read_back(PRECISIONS[name], CPU)
        assert (read.fp32_matmul, read.fp32_conv) == (setting, setting)


def test_whoever_looks_through_torchs_older_interface_finds_the_same():
    for name in ("tf32", "fp32", "tf32", "amp-bf16"):
        amp.apply(PRECISIONS[name])
        on = name == "tf32"
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (on, on)
        assert torch.get_float32_matmul_precision() == ("high" if on else "highest")


def test_what_is_read_back_is_what_the_switch_is_and_not_what_was_asked():
    amp.apply(PRECISIONS["fp32"])
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    assert amp.read_back(PRECISIONS["fp32"], CPU).fp32_matmul == "bf16"


def test_the_older_interface_is_used_where_there_is_no_newer_one(monkeypatch):
    class Part:
        allow_tf32 = None

    class Backends:
        cuda = type("Cuda", (), {"matmul": Part()})
        cudnn = Part()

    monkeypatch.setattr(capabilities, "_backends", Backends)
    for name, on in (("tf32", True), ("fp32", False)):
        amp.apply(PRECISIONS[name])
        assert (Backends.cuda.matmul.allow_tf32, Backends.cudnn.allow_tf32) == (on, on)
        assert amp.read_back(PRECISIONS[name], CPU).fp32_matmul == ("tf32" if on else "ieee")


def test_the_probe_tells_ieee_from_ten_bits_of_mantissa(monkeypatch):
    amp.apply(PRECISIONS["fp32"])
    assert capabilities.matmul_error(CPU) < 2e-6
    exact = torch.Tensor.__matmul__

    def rounded(a, b):
        if a.dtype == torch.float64:
            return exact(a, b)
        return exact(*((t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for t in (a, b)))

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert 1e-4 < capabilities.matmul_error(CPU) < 1e-3


def test_autocast_computes_in_the_precisions_type():
    a = torch.randn(4, 4)
    for name, dtype in (("fp32", torch.float32), ("amp-bf16", torch.bfloat16), ("amp-fp16", torch.float16)):
        with amp.autocast(PRECISIONS[name], CPU):
            assert (a @ a).dtype == dtype


def test_only_two_scale_their_loss_and_with_torchs_own_defaults():
    scalers = {name: amp.grad_scaler(p, CPU) for name, p in PRECISIONS.items()}
    assert [name for name, scaler in scalers.items() if scaler.is_enabled()] == ["amp-fp16", "fp16-master"]
    assert {str(scaler.state_dict()) for scaler in scalers.values() if scaler.is_enabled()} == {
        str(torch.amp.GradScaler("cpu").state_dict())
    }


def test_options_reach_the_scaler():
    changed = parse_precision("amp-fp16:growth_interval=5,init_scale=1024,growth_factor=4,backoff_factor=0.25")
    scaler = amp.grad_scaler(changed, CPU)
    assert (scaler.get_scale(), scaler.get_growth_factor()) == (1024, 4)
    assert (scaler.get_backoff_factor(), scaler.get_growth_interval()) == (0.25, 5)


def test_autocast_forgets_its_copies_of_weights_where_they_are_not_to_be_kept():
    for name, kept in (("amp-bf16", True), ("amp-bf16:cache=off", False)):
        with amp.autocast(parse_precision(name), CPU):
            assert torch.is_autocast_cache_enabled() is kept


@pytest.mark.parametrize(("name", "after"), [("amp-fp16:scale=128", 128), ("amp-fp16:init_scale=128", 64)])
def test_a_scale_halves_after_an_overflow_unless_it_is_static_and_either_way_the_step_is_skipped(name, after):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), amp.grad_scaler(parse_precision(name), CPU)
    for factor, expected in ((float("inf"), 1.0), (0.5, 0.5)):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert (float(weight), scaler.get_scale()) == (expected, after)


def test_float8_is_left_to_torchao_but_for_layers_whose_sizes_its_products_do_not_take(monkeypatch):
    chosen = []

    def convert(model, *, module_filter_fn):
        chosen.extend(name for name, module in model.named_modules() if module_filter_fn(module, name))

    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", ModuleType("torchao.float8"))
    sys.modules["torchao.float8"].convert_to_float8_training = convert
    layers = (torch.nn.Conv2d(16, 16, 1), torch.nn.Linear(16, 32), torch.nn.Linear(32, 10), torch.nn.Linear(10, 16))
    amp.use_float8(torch.nn.Sequential(*layers))
    assert chosen == ["1"]
