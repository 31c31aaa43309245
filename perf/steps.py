"""Steps of other libraries' models, and of the harness's in the usual loop, against the harness.

timm has the models of images, Hugging Face's transformers GPT-2. Each comparison runs in fresh
processes.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bench.launch.local import LocalLauncher
from bench.spec.suite import Suite
from perf import arms, outcome

TIMED = "perf.steps:over_harness"
TIMM, TRANSFORMERS, USUAL = "timm", "transformers", "the usual loop, same model,"


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A suite's model whose steps are timed, and the package that also has it."""

    suite: str
    package: str
    parameters: dict[str, object] = field(default_factory=dict)
    """Of the suite."""
    batch: dict[str, int]
    """Samples in a batch, by the kind of device."""
    usual: bool = True
    """Whether the suite's model is also timed in the usual loop; steps of seconds would hide a
    loop's cost."""

    @property
    def peers(self) -> tuple[str, ...]:
        """Arms with which the harness's steps are compared."""
        return (self.package, USUAL) if self.usual else (self.package,)


MODELS = {
    "resnet50": Model(suite="resnet50", package=TIMM, batch={"cpu": 8, "cuda": 256}),
    "vit_b_16": Model(suite="vit_b_16", package=TIMM, batch={"cpu": 2, "cuda": 64}),
    "gpt-tiny": Model(
        suite="gpt",
        package=TRANSFORMERS,
        parameters={"preset": "tiny"},
        batch={"cpu": 32, "cuda": 512},
    ),
    "gpt2": Model(
        suite="gpt",
        package=TRANSFORMERS,
        parameters={"preset": "gpt2"},
        batch={"cpu": 1, "cuda": 12},
        usual=False,
    ),
}
# timm's names of the suites' models.
TIMM_NAMES = {"resnet50": "resnet50", "vit_b_16": "vit_base_patch16_224"}


def timm_model(suite: Suite) -> nn.Module:
    """Return timm's counterpart of a suite's model, with the suite's stem for small images."""
    import timm

    from suites._cifar import cifar_stem

    torch.manual_seed(0)
    model: nn.Module = timm.create_model(TIMM_NAMES[suite.name], num_classes=suite.data.classes)
    return cifar_stem(model) if suite.data.input_shape[1] == 32 else model


class Logits(nn.Module):
    """A Hugging Face language model that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, (B, length, vocabulary), of tokens, (B, length)."""
        logits: Tensor = self.model(tokens).logits
        return logits


def huggingface_model(suite: Suite, preset: str) -> nn.Module:
    """Return Hugging Face's GPT-2 in the sizes of a preset of gpt, without dropout and cache.

    Its GELU is torch's tanh approximation, as in the suite. By default its configuration computes
    the same function in several operators, which is slower.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    from suites.gpt import PRESETS

    sizes = PRESETS[preset]
    config = GPT2Config(
        vocab_size=suite.data.classes,
        n_positions=suite.data.input_shape[0],
        n_embd=sizes.width,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return Logits(GPT2LMHeadModel(config))


def over_harness(comparison: arms.Comparison) -> dict[str, float]:
    """Return the log-ratio of each peer's step time to the harness's, as this process measures it.

    All arms are timed in the same rounds. A peer whose package is not installed is left out.
    """
    arguments = comparison.arguments()
    key = (comparison.suite, comparison.parameters)
    model = next(model for model in MODELS.values() if (model.suite, model.parameters) == key)
    make = {TIMM: timm_model, TRANSFORMERS: huggingface_model}[model.package]
    builders: dict[str, Callable[[], arms.TrainingRunner | arms.HandRunner]] = {
        arms.HARNESS: lambda: arms.harness(*arguments)
    }
    if importlib.util.find_spec(model.package):
        builders[model.package] = lambda: arms.by_hand(
            *arguments, model=make(arguments[0], **comparison.parameters)
        )
    if model.usual:
        builders[USUAL] = lambda: arms.by_hand(*arguments)
    return arms.log_ratios(comparison, builders, arms.HARNESS)


def steps(
    options: argparse.Namespace, launcher: LocalLauncher, precision: str, notes: list[str]
) -> list[outcome.Outcome]:
    """Compare steps of one precision with each peer's.

    Args:
        options: the script's options: device, models, number of processes, and seconds an arm in
            all processes.
        launcher: starts the processes.
        precision: of all arms.
        notes: receives the models and peers that are left out.
    """
    outcomes = []
    for name in options.models.split(","):
        model = MODELS[name]
        if not importlib.util.find_spec(model.package):
            notes.append(f"{model.package} is left out: it is not installed.")
            if not model.usual:
                notes.append(f"{name} is left out: it is compared only with {model.package}.")
                continue
        comparison = arms.Comparison(
            suite=model.suite,
            parameters=model.parameters,
            precision=precision,
            device=options.device,
            batch_size=model.batch[torch.device(options.device).type],
            budget_s=options.budget / options.processes,
        )
        ratios = arms.over_processes(launcher, TIMED, comparison, options.processes)
        for peer in model.peers:
            if peer in ratios:
                what = (
                    f"step of {name}, batch {comparison.batch_size}, {precision}: {peer} ÷ harness"
                )
                row = outcome.Outcome(
                    name=what, interval=ratios[peer], least=1.0, by_interval=True, unit="×"
                )
                outcomes.append(row)
    return outcomes
