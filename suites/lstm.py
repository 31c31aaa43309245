"""An LSTM that predicts the next token, on a Markov stream of known entropy rate, or on a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Suite, require

if TYPE_CHECKING:
    from torch import nn, optim


def _lstm(layers: int, width: int, dropout: float, classes: int) -> nn.Module:
    """Build the model, which returns (B, length, classes) logits."""
    from torch import Tensor, nn

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.dropout = nn.Embedding(classes, width), nn.Dropout(dropout)
            self.lstm = nn.LSTM(
                width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0
            )
            self.head = nn.Linear(width, classes)
            for weight in (self.tokens.weight, self.head.weight):
                nn.init.uniform_(weight, -0.1, 0.1)
            nn.init.zeros_(self.head.bias)

        def forward(self, tokens: Tensor) -> Tensor:
            embedded = self.dropout(self.tokens(tokens))
            hidden, _ = self.lstm(embedded)
            logits: Tensor = self.head(self.dropout(hidden))
            return logits

    return LanguageModel()


def suite(
    *,
    layers: int = 2,
    width: int = 200,
    block: int = 35,
    dropout: float = 0.2,
    vocabulary: int = 256,
    lr: float = 20.0,
    clip_grad: float = 0.25,
    batches: int = 200,
    batch_size: int = 20,
) -> Suite:
    """Return the recipe: SGD at a constant rate of 20, gradients clipped to 0.25, batch 20.

    Args:
        layers: of the LSTM.
        width: of embedding and hidden states.
        block: tokens in a sequence; the state begins at zero in each.
        dropout: share of values that are dropped before, between and after the layers.
        vocabulary: size, where tokens are no bytes of a text.
        lr: learning rate of SGD.
        clip_grad: norm to which gradients are clipped.
        batches: batches in an epoch, of new sequences.
        batch_size: sequences in a batch.
    """
    for name, size in (("layers", layers), ("width", width), ("batches", batches)):
        require(size >= 1, name, "1 or more", size)
    require(0 <= dropout < 1, "dropout", "a share from 0 and below 1", dropout)

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.SGD(parameters, lr=lr)

    return Suite(
        name="lstm",
        title=f"LSTM language model: {layers} layers of {width}, sequences of {block} tokens",
        data=Data(
            input_shape=(block,),
            classes=vocabulary,
            tokens=True,
            source="markov",
            steps_per_epoch=batches,
        ),
        model=lambda data: _lstm(layers, width, dropout, data.classes or vocabulary),
        optimizer=optimizer,
        clip_grad=clip_grad,
        batch_size=batch_size,
        batch_sizes=(20, 80, 320),
        cpu_batch_sizes=(20,),
        epochs=5,
        full_epochs=40,
        source=(
            "Zaremba et al., Recurrent Neural Network Regularization (2014); sizes as in "
            "pytorch/examples"
        ),
    )
