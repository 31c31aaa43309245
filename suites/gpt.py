"""A transformer that predicts the next token, as GPT-2, on a Markov stream of known entropy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.spec import Data, Suite, require
from suites._schedule import cosine, require_share

if TYPE_CHECKING:
    from torch import nn, optim
    from torch.optim import lr_scheduler


class Preset(NamedTuple):
    """Sizes of a model, peak learning rate, and batch sizes.

    ``batch_size`` is for training, the others are compared on a GPU and on a CPU.
    """

    layers: int
    heads: int
    width: int
    block: int
    vocabulary: int
    lr: float
    batch_size: int
    batch_sizes: tuple[int, ...]
    cpu_batch_sizes: tuple[int, ...]


PRESETS = {
    "tiny": Preset(4, 4, 128, 64, 256, 1e-3, 32, (32, 128, 512), (32,)),
    "char": Preset(6, 6, 384, 256, 256, 1e-3, 64, (64, 128, 256), (8,)),
    "gpt2": Preset(12, 12, 768, 1024, 50304, 6e-4, 12, (4, 8, 12, 16), (1,)),
    "wide": Preset(2, 32, 4096, 1024, 256, 3e-4, 4, (2, 4, 8), (1,)),
}


def _gpt(layers: int, heads: int, width: int, block: int, classes: int) -> nn.Module:
    """Build the model; ``block`` is the length of a sequence."""
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import scaled_dot_product_attention

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.projection = nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            attended = scaled_dot_product_attention(q, k, v, is_causal=True)
            out: Tensor = self.projection(attended.transpose(1, 2).flatten(2))
            return out

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attention = nn.LayerNorm(width), Attention()
            self.norm2, self.expansion = nn.LayerNorm(width), nn.Linear(width, 4 * width)
            self.gelu = nn.GELU(approximate="tanh")  # as GPT-2's
            self.projection = nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention(self.norm1(x))
            out: Tensor = x + self.projection(self.gelu(self.expansion(self.norm2(x))))
            return out

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(classes, width), nn.Embedding(block, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)
            self.head.weight = self.tokens.weight
            _initialise(self, layers)

        def forward(self, tokens: Tensor) -> Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.blocks(self.tokens(tokens) + self.positions(places))
            logits: Tensor = self.head(self.norm(x))
            return logits

    return GPT()


def _initialise(model: nn.Module, layers: int) -> None:
    """Draw weights as GPT-2 does."""
    from torch.nn import init

    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            init.zeros_(weight)
        elif "projection" in name:
            # A block adds the outputs of its two projections to its input. Smaller weights keep
            # the variance of the sum over all blocks.
            init.normal_(weight, std=0.02 / (2 * layers) ** 0.5)
        elif weight.dim() == 2:
            init.normal_(weight, std=0.02)


def suite(
    *,
    preset: str = "tiny",
    lr: float = 0.0,
    weight_decay: float = 0.1,
    warmup: float = 0.1,
    batches: int = 200,
    batch_size: int = 0,
) -> Suite:
    """Return the recipe: AdamW without decay of biases and norms, a tenth of warm-up, cosine.

    nanoGPT also clips gradients, which is ``--clip-grad 1`` here.

    Args:
        preset: the model's size: tiny, char, gpt2 or wide.
        lr: peak learning rate of AdamW; 0 is the preset's.
        weight_decay: of AdamW, of matrices and embeddings.
        warmup: share of the run in which the rate rises.
        batches: batches in an epoch, of new sequences.
        batch_size: sequences in a batch of training; 0 is the preset's.
    """
    require(preset in PRESETS, "preset", " or ".join(PRESETS), preset)
    require_share(warmup)
    require(batches >= 1, "batches", "1 or more", batches)
    chosen = PRESETS[preset]
    layers, heads, width, block, vocabulary = chosen[:5]

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        decaying: dict[str, Any] = {"params": []}
        constant: dict[str, Any] = {"params": [], "weight_decay": 0.0}
        for weight in parameters:
            group = decaying if weight.dim() > 1 else constant
            group["params"].append(weight)
        groups = [decaying, constant]
        return optim.AdamW(groups, lr=lr or chosen.lr, betas=(0.9, 0.95), weight_decay=weight_decay)

    def schedule(optimizer: optim.Optimizer, steps: int) -> lr_scheduler.LRScheduler:
        return cosine(optimizer, steps, warmup)

    return Suite(
        name="gpt",
        title=(
            f"GPT-2's architecture, {preset}: {layers} layers of {width}, {heads} heads, sequences "
            f"of {block} tokens"
        ),
        data=Data(
            input_shape=(block,),
            classes=vocabulary,
            tokens=True,
            source="markov",
            steps_per_epoch=batches,
        ),
        model=lambda data: _gpt(*chosen[:4], data.classes or vocabulary),
        optimizer=optimizer,
        schedule=schedule,
        batch_size=batch_size or chosen.batch_size,
        batch_sizes=chosen.batch_sizes,
        cpu_batch_sizes=chosen.cpu_batch_sizes,
        epochs=5,
        full_epochs=5,
        seeds=(0, 1, 2, 3, 4),
        source=(
            "Radford et al., Language Models are Unsupervised Multitask Learners (2019); sizes as "
            "in nanoGPT"
        ),
    )
