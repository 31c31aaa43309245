"""What each card does, card by card as in docs/capabilities.md, and what the libraries' own gates say of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bench.devices.backend import backend_of
from bench.spec.precisions import PRECISIONS, emulation_of, parse_precision
from tests.libraries import WITHOUT_TORCHAO

ANY = {"fp32", "amp-fp16", "amp-fp16-noscale", "fp16-master", "fp16"}
AMPERE = {*ANY, "adamw8bit", "tf32", "default", "amp-bf16", "bf16", "bf16-sr"}
ADA = {*AMPERE, "adamwfp8", "fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp"}
TE = {"te-bf16", "te-fp8"}
CARDS = {
    "P100": ((6, 0), ANY),
    "V100": ((7, 0), {*ANY, "adamw8bit"}),
    "T4": ((7, 5), {*ANY, "adamw8bit"}),
    "A100": ((8, 0), {*AMPERE, "te-bf16"}),
    "L4": ((8, 9), ADA | TE),
    "H100": ((9, 0), ADA | TE),
    "B200": ((10, 0), {*ADA, *TE, "mxfp8", "nvfp4", "te-mxfp8"}),
    "RTX 5090": ((12, 0), ADA | TE),
    "MI300X": ("gfx942", ADA - {"default"}),
}
MORE_BY_THE_GATE = {("mxfp8", "RTX 5090"), ("nvfp4", "RTX 5090")}
"""Where a library's gate lets through what its kernels do not do (docs/capabilities.md)."""


@pytest.fixture
def card(monkeypatch, software):
    """Make torch see a card; return its backend."""

    def see(name):
        model = CARDS[name][0]
        is_amd = isinstance(model, str)
        properties = {"gcnArchName": f"{model}:sramecc+"} if is_amd else {"major": model[0], "minor": model[1]}
        monkeypatch.setattr(torch.version, "hip", "7.0" if is_amd else None)
        monkeypatch.setattr(torch.version, "cuda", None if is_amd else "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(**properties))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 4) if is_amd else model)
        software()
        return backend_of(torch.device("cuda", 0))

    return see


@pytest.mark.parametrize("name", CARDS)
def test_each_card_does_what_the_table_says_and_says_what_it_lacks(card, name):
    backend, (model, does) = card(name), CARDS[name]
    reasons = {each: backend.unsupported_reason(precision) for each, precision in PRECISIONS.items()}
    assert {each for each, reason in reasons.items() if reason is None} == does
    named = model if isinstance(model, str) else "sm_{}{}".format(*model)
    assert all(reason.startswith(f"{each} needs ") and named in reason for each, reason in reasons.items() if reason)


@pytest.mark.parametrize("name", CARDS)
def test_emulation_runs_wherever_its_autocast_does(card, name):
    backend, does = card(name), CARDS[name][1]
    for each, precision in PRECISIONS.items():
        if precision.can_be_emulated:
            reason = backend.unsupported_reason(parse_precision(emulation_of(each)))
            assert (reason is None) == ("amp-bf16" in does)


@pytest.mark.skipif(bool(WITHOUT_TORCHAO), reason=WITHOUT_TORCHAO)
@pytest.mark.parametrize("name", CARDS)
def test_the_libraries_own_gates_say_the_same_but_where_it_is_known_that_they_do_not(card, name):
    from torchao import utils

    card(name)
    gates = {
        "amp-bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "tf32": torch.cuda.is_tf32_supported(),
        "fp8-tensorwise": utils.is_MI300() or bool(utils.is_sm_at_least_89()),
        "mxfp8": bool(utils.is_sm_at_least_100()),
        "nvfp4": bool(utils.is_sm_at_least_100()),
    }
    differs = {each for each, passes in gates.items() if passes != (each in CARDS[name][1])}
    assert differs == {each for each, other in MORE_BY_THE_GATE if other == name}


@pytest.mark.parametrize("name", [name for name, one in PRECISIONS.items() if one.package])
def test_without_its_package_a_precision_names_it(card, software, name):
    backend = card("B200")
    software(packages=False)
    package = PRECISIONS[name].package
    assert backend.unsupported_reason(PRECISIONS[name]).startswith(f"{name} needs {package}, which is not installed")
