"""Models of transformers by type, such as hf:bert, or by configuration, of the hub or a folder.

The inputs and the loss are those of the first of the ``TASKS`` that transformers has a model of
this type for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.spec import Data, Suite, UsageError, require
from bench.spec.errors import first_line
from suites import _library

if TYPE_CHECKING:
    from torch import Tensor, nn

# Tokens of a sequence where none are set, and where only a CPU measures.
LENGTH, CPU_LENGTH = 256, 64
# Of images, where a type's default configuration is what there is.
CLASSES = 1000
# Share of the tokens that a masked language model predicts, as in BERT.
MASKED = 0.15
# transformers' label of a token that is not predicted.
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a batch."""

    batch: int
    length: int
    """Of a sequence of tokens."""
    image: tuple[int, ...]
    """Channels, height and width."""
    classes: int


# ``draw(most, *shape)``: random whole numbers below ``most``; ``draw(None, *shape)``: normal
# numbers.
Draw = Callable[..., Any]


def _masked(config: Any, shape: Shape, draw: Draw) -> dict[str, Tensor]:
    labels = draw(_vocabulary(config), shape.batch, shape.length)
    hidden = draw(1000, shape.batch, shape.length) < 1000 * MASKED
    hidden[:, 0] = True  # a loss needs one
    inputs = labels.masked_fill(hidden, _vocabulary(config) - 1)
    return {"input_ids": inputs, "labels": labels.masked_fill(~hidden, IGNORED)}


def _translated(config: Any, shape: Shape, draw: Draw) -> dict[str, Tensor]:
    inputs = draw(_vocabulary(config), shape.batch, shape.length)
    labels = draw(_vocabulary(config), shape.batch, shape.length)
    return {"input_ids": inputs, "labels": labels}


def _contrasted(config: Any, shape: Shape, draw: Draw) -> dict[str, Any]:
    tokens = draw(_vocabulary(config), shape.batch, shape.length)
    pixels = draw(None, shape.batch, *shape.image)
    return {"input_ids": tokens, "pixel_values": pixels, "return_loss": True}


def _spoken(config: Any, shape: Shape, draw: Draw) -> dict[str, Tensor]:
    features = draw(None, shape.batch, config.num_mel_bins, 2 * config.max_source_positions)
    labels = draw(_vocabulary(config), shape.batch, CPU_LENGTH)
    return {"input_features": features, "labels": labels}


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of model that transformers has an auto class for, and batches to train it on."""

    auto: str
    """The auto class."""
    mapping: str
    """The mapping of modeling_auto that has its types."""
    summary: str
    """Its data and its loss, in a title."""
    batch: Callable[[Any, Shape, Draw], dict[str, Any]] | None = None
    """Draws a batch of keyword arguments for the model, whose output has a loss. None where the
    samples are images or tokens, and the loss is of the model's logits: then --data may name
    others."""
    encoder_decoder: bool | None = None
    """Whether models are encoders with a decoder; None where it does not matter."""
    images: bool = False
    """Whether samples are images, or have some, so that the model has an image size and classes of
    its own."""


TASKS = (
    Task(
        "AutoModelForSpeechSeq2Seq",
        "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        "spectrograms of 30 s, cross entropy of their transcription",
        _spoken,
        encoder_decoder=True,
    ),
    Task(
        "AutoModelForSeq2SeqLM",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        "two sequences, cross entropy of the second",
        _translated,
        encoder_decoder=True,
    ),
    Task(
        "AutoModelForMaskedLM",
        "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        "cross entropy of the 15 % of tokens that are masked",
        _masked,
        encoder_decoder=False,
    ),
    Task(
        "AutoModelForZeroShotImageClassification",
        "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        "images and texts, contrastive loss",
        _contrasted,
        images=True,
    ),
    Task(
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        "images, cross entropy",
        images=True,
    ),
    Task(
        "AutoModelForCausalLM",
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "cross entropy of each next token",
        encoder_decoder=False,
    ),
)


def names() -> list[str]:
    """Return the types that have a model for one of the tasks."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    trained = {kind for task in TASKS for kind in getattr(modeling_auto, task.mapping)}
    return sorted(trained & {*CONFIG_MAPPING.keys()})


def suite(
    name: str,
    /,
    *,
    sequence_length: int = 0,
    image_size: int = 0,
    optimizer: str = "adamw",
    lr: float = 0.0,
    weight_decay: float = 0.05,
    weights: str = "none",
    batch_size: int = 0,
    batches: int = 50,
) -> Suite:
    """Return a recipe for a model at a constant rate, on random data unless --data says otherwise.

    Args:
        name: a type, ORG/NAME on the hub, or the path of a folder with a config.json.
        sequence_length: tokens of a sequence; 0 is 256, or the most that the model takes.
        image_size: height and width of images; 0 is the model's own.
        optimizer: adamw or sgd, with momentum.
        lr: learning rate; 0 is 0.0003 of adamw and 0.05 of sgd.
        weight_decay: of the optimizer.
        weights: initial weights: none, pretrained, or the path of a state dict.
        batch_size: samples in a batch; 0 is as many as should fit, 64 at most.
        batches: batches in an epoch of random data.
    """
    import transformers

    config, is_default = _config(name)
    task = _task(name, config)
    has_weights = weights != "pretrained" or not is_default
    require(has_weights, "weights", "none or a path, for a type has no weights", weights)
    vision, text = getattr(config, "vision_config", config), config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    _library.require_size("sequence_length", sequence_length, most)
    _library.require_size("image_size", image_size)
    length = sequence_length or min(LENGTH, most or LENGTH)
    size = image_size or getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    image = (getattr(vision, "num_channels", 3), height, width)
    shown = f"{height}×{width}" if task.images else f"{length} tokens"
    classes = CLASSES if is_default and task.images else config.num_labels
    data = Data(input_shape=(length,), classes=classes, steps_per_epoch=batches)
    if task.batch is None and task.images:
        mean, std = _library.MEAN, _library.STD
        data = replace(data, input_shape=image, flip=True, mean=mean, std=std)
    elif task.batch is None:
        data = replace(data, classes=_vocabulary(config), tokens=True)

    def model(data: Data) -> nn.Module:
        if image_size:
            vision.image_size = image_size
        _resize(config, data)
        return _model(name, config, task, weights, data)

    def drawn(split: str, batch_size: int, seed: int) -> Iterator[dict[str, Any]] | None:
        shape = Shape(batch_size, length, image, data.classes or 1)
        return _epoch(task, config, shape, batches, seed) if split == "train" else None

    fields: dict[str, Any] = {}
    if task.batch is not None:
        fields |= {"batches": drawn, "loss": lambda model, batch: model(**batch)}
    if not task.images or task.batch is _contrasted:
        fields |= {"cpu_parameters": {"sequence_length": min(CPU_LENGTH, length)}}
    shown_name = Path(name).name if Path(name).is_absolute() else name
    return _library.recipe(
        name=f"hf:{shown_name}",
        title=f"transformers' {config.model_type} as {task.auto}, {shown}: {task.summary}",
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        weights=weights,
        batch_size=batch_size,
        data=data,
        model=model,
        source=f"transformers {transformers.__version__}",
        **fields,
    )


def _config(name: str) -> tuple[Any, bool]:
    """Return a configuration, and whether it is the default one of a type.

    Raises:
        UsageError: there is none of this name, or it cannot be read.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if name in CONFIG_MAPPING:
        return AutoConfig.for_model(name), True
    if "/" not in name:
        raise _library.unknown("hf", name, names())
    is_folder = Path(name).is_dir()
    try:
        try:  # what is on the disk needs no network
            return AutoConfig.from_pretrained(name, local_files_only=True), False
        except OSError:
            if is_folder:
                raise
            return AutoConfig.from_pretrained(name), False
    except Exception as error:  # of the network, of the hub, or of a broken file
        where = "configuration is not here and not on the hub"
        if is_folder:
            where = "folder has no configuration"
        raise UsageError(
            f"hf:{name}: its {where} that transformers can read ({first_line(error)}). Name a type "
            "such as hf:bert, ORG/NAME on the hub, or a folder with a config.json."
        ) from error


def _task(name: str, config: Any) -> Task:
    """Return the task that a model is trained for.

    Raises:
        UsageError: transformers has no model of this type for any of them.
    """
    from transformers.models.auto import modeling_auto

    is_encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    for task in TASKS:
        types = getattr(modeling_auto, task.mapping)
        if task.encoder_decoder in (None, is_encoder_decoder) and config.model_type in types:
            return task
    classes = ", ".join(task.auto for task in TASKS)
    raise UsageError(
        f"hf:{name} cannot be trained by its name: transformers has no model of the type "
        f"{config.model_type} for {classes}. Write a suite with "
        "batches and a loss of its own (docs/adding-a-suite.md)."
    )


def _vocabulary(config: Any) -> int:
    size: int = config.get_text_config().vocab_size
    return size


def _resize(config: Any, data: Data) -> None:
    """Give a configuration the data's number of classes, or size of vocabulary."""
    if not data.tokens:
        config.num_labels = data.classes
        return
    text = config.get_text_config()
    if data.classes is None or data.classes == text.vocab_size:
        return
    text.vocab_size = data.classes
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        token = getattr(text, name, None)
        if isinstance(token, int) and token >= data.classes:  # the embedding has no such row
            setattr(text, name, None)


def _model(name: str, config: Any, task: Task, weights: str, data: Data) -> nn.Module:
    """Build a model in fp32; one of images or tokens returns its logits alone."""
    import torch
    import transformers
    from torch import nn

    from bench.training.pretrained import pretrained

    auto = getattr(transformers, task.auto)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        # Who generates sets it; a training needs one, too.
        config.decoder_start_token_id = config.pad_token_id = config.pad_token_id or 0
    config.use_cache = False  # of keys and values, which only generation reads
    if hasattr(config, "layerdrop"):
        config.layerdrop = 0.0  # else each step does another amount of work
    if torch.empty(0).is_meta:  # planning counts work and memory on this device
        # Augments sounds; it reads values, and takes no memory to speak of.
        config.apply_spec_augment = False
    has_mask = data.tokens and hasattr(config.get_text_config(), "num_attention_heads")

    class Logits(nn.Module):
        """A model that returns its logits."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.name = inner, "input_ids" if data.tokens else "pixel_values"

        def forward(self, inputs: Tensor) -> Tensor:
            more = {}
            if inputs.is_meta and has_mask:  # without one, transformers reads values to make it
                size, length = inputs.shape
                mask = torch.ones(size, 1, length, length, dtype=torch.bool, device="meta")
                more["attention_mask"] = mask
            logits: Tensor = self.inner(**{self.name: inputs}, **more).logits
            return logits

    def build(num_classes: int | None = None) -> nn.Module:
        del num_classes  # the configuration has it
        if weights != "pretrained" or torch.empty(0).is_meta:
            built: nn.Module = auto.from_config(config, dtype=torch.float32)
            return built
        keep = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": True}
        return _library.fetched(lambda: auto.from_pretrained(name, **keep), name)

    inner = pretrained(build, "none" if weights == "pretrained" else weights, data)
    return Logits(inner) if task.batch is None else inner


def _epoch(
    task: Task, config: Any, shape: Shape, batches: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield an epoch of random batches."""
    import torch

    rng = torch.Generator().manual_seed(seed)

    def draw(most: int | None, *size: int) -> Tensor:
        if most is None:
            return torch.randn(size, generator=rng)
        return torch.randint(most, size, generator=rng)

    assert task.batch is not None
    for _ in range(batches):
        yield task.batch(config, shape, draw)
