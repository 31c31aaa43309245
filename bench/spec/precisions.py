"""The registry of precisions: all that differs between them, and how their names are parsed.

To add a precision, add an entry to ``PRECISIONS``; if it does what no precision does yet, add that
to bench/training/amp.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from bench.spec.errors import UsageError, unknown
from bench.spec.options import Reader, number, whole
from bench.spec.suite import Parameter

# Arithmetic that a device has or lacks; bench/devices tells which has what. Empty: every device has
# it.
Feature = Literal["", "tf32", "cudnn-tf32", "fp16", "bf16", "fp8"]
# An fp32 matrix product with a larger relative error was not computed in IEEE fp32. Of 512×512
# normal random numbers, in the Frobenius norm, that gives 3e-7, TF32 3e-4, and bfloat16 2e-3.
IEEE_ERROR = 3e-5
# Types that are no fp32.
NARROW = re.compile(r"tf32|b?float16|float[48]_\w+")
# An arm with autocast is hardly narrow where more of its products than this are in fp32: even if
# the others took no time, all together would be 4 times as fast at most.
MOST_WIDE_PCT = 25.0
# How fp32 numbers are multiplied: in IEEE fp32; rounded to TF32 (8 bits of exponent, 10 of
# mantissa) in matrix products, convolutions and recurrent layers; or as torch does when nobody has
# touched a switch, which is TF32 in cuDNN's convolutions and recurrent layers, and IEEE fp32 in
# matrix products.
Fp32 = Literal["ieee", "tf32", "default"]
# Recipes of torchao's float8 training, by its names.
ConversionRecipe = Literal["tensorwise", "rowwise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """How numbers are stored and multiplied: one arm of a comparison."""

    name: str
    """The name on the command line and in every table, with the options that differ from the
    defaults."""
    summary: str
    """A description in one line."""
    autocast: Literal["float16", "bfloat16"] | None = None
    """The type that ``torch.autocast`` computes in; None is without autocast."""
    cache: bool = True
    """Whether autocast keeps its 16-bit copies of weights until its region ends."""
    weights: Literal["float16", "bfloat16"] | None = None
    """The type of the weights, and of everything computed with them; None is fp32."""
    master: bool = False
    """Whether the optimizer updates an fp32 copy of the 16-bit weights; batch norm then stays in
    fp32."""
    conversion: ConversionRecipe | None = None
    """How torchao converts linear layers before training: what their products are scaled by."""
    keep: str = ""
    """Modules that stay in fp32: globs on their whole dotted names, joined by ``+``, as in
    ``head+blocks.*.norm``."""
    multiple: int = 1
    """What the sizes of a converted layer are multiples of, and the samples, or tokens, of a
    training batch; a layer of other sizes stays as it is."""
    fp32: Fp32 = "ieee"
    """How fp32 numbers are multiplied."""
    loss_scaling: bool = False
    """Whether a GradScaler scales the loss."""
    scale: float | None = None
    """The static loss scale; None adapts the scale to the gradients."""
    init_scale: float = 2.0**16
    growth_interval: int = 2000
    """A dynamic scale's start, and the steps until it grows: torch's own defaults."""
    needs: Feature = ""
    """The arithmetic that the device must have."""
    single_device: str | None = None
    """Why it trains on one device only; None if several may train together."""
    default: bool = False
    """Whether it is measured where the device may gain by it and ``--precisions`` names nothing."""
    color: str
    """In figures, for it and its variants."""
    marker: str
    """Matplotlib's, in figures."""

    @property
    def base(self) -> str:
        """The name without options."""
        return self.name.partition(":")[0]

    @property
    def compute(self) -> str:
        """The type of most of the computation, by torch's name."""
        return self.autocast or self.weights or "float32"

    @property
    def options(self) -> tuple[str, ...]:
        """The fields that may be set after a colon, as in ``amp-fp16:init_scale=1024``."""
        options: tuple[str, ...] = ()
        if self.loss_scaling:
            options += ("scale", "init_scale", "growth_interval")
        if self.autocast:
            options += ("cache", "keep")
        return options

    def missed(self, computed: str) -> str:
        """Say that no product of converted layers ran in float8; empty if one did.

        Args:
            computed: types with their shares, as in ``bfloat16:98% float32:2%``.
        """
        if self.conversion is None or not computed or "float8" in computed:
            return ""
        return f"no product ran in float8, but in {computed}"


BASELINE = "fp32"
# The largest scale that fp32 holds.
LARGEST = 2.0**127
# The oldest torchao with all that is taken from it to convert layers, and the oldest torch that it
# loads its compiled kernels with (``torchao/__init__.py``).
TORCHAO = "0.18"
TORCH_OF_TORCHAO = "2.11"
# What the sizes of float8 products must be multiples of (torch._scaled_mm). Gradients of weights
# are products over the rows of a batch.
FLOAT8_MULTIPLE = 16
# By name, in the order of every table. Colors are Okabe and Ito's (those of torchao: Tol's),
# distinct to readers with any common color blindness.
PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision(
            name="fp32",
            summary="IEEE fp32, TF32 off everywhere",
            default=True,
            color="#4d4d4d",
            marker="o",
        ),
        Precision(
            name="tf32",
            summary="fp32 with matrix products rounded to TF32",
            fp32="tf32",
            needs="tf32",
            default=True,
            color="#009e73",
            marker="^",
        ),
        Precision(
            name="default",
            summary=(
                "torch's own fp32, no switch touched: TF32 in cuDNN's layers, no search for their "
                "algorithms"
            ),
            fp32="default",
            needs="cudnn-tf32",
            color="#cc6677",
            marker="1",
        ),
        Precision(
            name="amp-fp16",
            summary="autocast to float16, dynamic loss scaling",
            autocast="float16",
            loss_scaling=True,
            needs="fp16",
            default=True,
            color="#0072b2",
            marker="s",
        ),
        Precision(
            name="amp-bf16",
            summary="autocast to bfloat16",
            autocast="bfloat16",
            needs="bf16",
            default=True,
            color="#d55e00",
            marker="D",
        ),
        Precision(
            name="amp-fp16-noscale",
            summary="autocast to float16 without loss scaling",
            autocast="float16",
            needs="fp16",
            color="#56b4e9",
            marker="<",
        ),
        Precision(
            name="fp16-master",
            summary=(
                "fp16 weights with an fp32 master copy, batch norm and loss in fp32, loss scaling"
            ),
            weights="float16",
            master=True,
            loss_scaling=True,
            needs="fp16",
            single_device="its gradients are widened before those of several devices are joined",
            color="#cc79a7",
            marker="P",
        ),
        Precision(
            name="fp16",
            summary="everything but the loss in fp16",
            weights="float16",
            needs="fp16",
            color="#000000",
            marker=">",
        ),
        Precision(
            name="bf16",
            summary="everything but the loss in bfloat16",
            weights="bfloat16",
            needs="bf16",
            color="#e69f00",
            marker="*",
        ),
        Precision(
            name="fp8-tensorwise",
            summary="amp-bf16 with linear layers in float8, per-tensor scaling (torchao)",
            autocast="bfloat16",
            conversion="tensorwise",
            multiple=FLOAT8_MULTIPLE,
            needs="fp8",
            color="#882255",
            marker="p",
        ),
        Precision(
            name="fp8-rowwise",
            summary="the same with row-wise scaling, by powers of two (torchao)",
            autocast="bfloat16",
            conversion="rowwise",
            multiple=FLOAT8_MULTIPLE,
            needs="fp8",
            color="#aa4499",
            marker="v",
        ),
    )
}


@cache
def parse_precision(word: str) -> Precision:
    """Return the precision that a word such as ``amp-fp16:init_scale=1024`` means.

    Its name is canonical: options in one order, options at their defaults left out. Two words with
    the same meaning are one arm.

    Raises:
        UsageError: there is no such precision or option, or the option cannot have that value.
    """
    head, colon, tail = word.strip().partition(":")
    if head not in PRECISIONS:
        raise unknown("precision", head, PRECISIONS)
    plain = PRECISIONS[head]
    given: dict[str, Parameter | None] = {}
    for part in tail.split(",") if colon else ():
        option, _, value = part.partition("=")
        option = option.strip()
        if option not in plain.options:
            raise unknown(f"option of {plain.name}", option, plain.options)
        given[option] = _OPTIONS[option](f"{plain.name}:{option}", value.strip())
    changed = []
    for option in plain.options:
        if option in given and given[option] != getattr(plain, option):
            changed.append(f"{option}={_text(given[option])}")
    if not changed:
        return plain
    name = f"{plain.name}:{','.join(changed)}"
    # Each value has been converted to its field's type.
    return replace(plain, name=name, **given)  # type: ignore[arg-type]


def keeping(name: str, modules: str) -> str:
    """Return the name of a precision that keeps ``modules``, globs joined by ``+``, in fp32."""
    mark = "," if ":" in name else ":"
    return parse_precision(f"{name}{mark}keep={modules}").name


def find_precision(name: str) -> Precision | None:
    """Return the precision with a name; None if it is unknown, as another version's may be."""
    try:
        return parse_precision(name)
    except UsageError:
        return None


def unexpected_types(name: str, computed: str) -> dict[str, str]:
    """Return the types of a step's products that are not a precision's, with shares as in ``98%``.

    They are narrower ones, and fp32 where autocast left more than ``MOST_WIDE_PCT`` in it. The rest
    of a mixed precision may be in TF32. There are none of a script's arm that has another name, and
    of layers that were converted.

    Args:
        name: the precision's.
        computed: types with their shares, as in ``bfloat16:98% float32:2%``.
    """
    precision = find_precision(name)
    if precision is None or precision.conversion:
        return {}
    allowed = [precision.compute]
    if precision.compute != "float32" or precision.fp32 != "ieee":
        allowed.append("tf32")
    others = {}
    for kind, share in re.findall(r"(\w+):(\S+)", computed):
        if kind == "float32":
            percent = float(share.strip("<>%?") or 0.0)
            is_other = precision.autocast is not None and percent > MOST_WIDE_PCT
        else:
            is_other = NARROW.fullmatch(kind) is not None and kind not in allowed
        if is_other:
            others[kind] = share
    return others


def unexpected_types_in_words(name: str, computed: str, modules: str) -> str:
    """Say which share of a step's products ran in ``unexpected_types``, and in which modules.

    Empty without any.
    """
    parts = []
    for kind, share in unexpected_types(name, computed).items():
        amount = share.replace("%", " %").replace("?", "some")
        parts.append(f"{amount} of its products in {kind}")
    if not parts:
        return ""
    where = f" ({modules})" if modules else ""
    return f"computed {' and '.join(parts)}{where}"


def precision_rank(name: str) -> tuple[int, str]:
    """Return the sort key that orders names as in ``PRECISIONS``, each before its variants.

    Unknown names come last.
    """
    precision = find_precision(name)
    if precision is None:
        return (len(PRECISIONS), name)
    return (list(PRECISIONS).index(precision.base), name)


def split(text: str) -> list[str]:
    """Split a list of precisions at its commas, except those between options.

    ``a:x=1,y=2,b`` is two words.
    """
    return re.split(r",(?!\s*\w+=)", text)


def _text(value: Parameter | None) -> str:
    """Return a value as it is typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return str(value)


def _scale(option: str, text: str) -> float | None:
    if text == "dynamic":
        return None
    scale: float = number("a number above 0, or dynamic", {"": 1}, LARGEST)(option, text)
    return scale


def _switch(option: str, text: str) -> bool:
    if text not in ("on", "off"):
        raise UsageError(f"{option} takes on or off, not '{text}'.")
    return text == "on"


def _globs(option: str, text: str) -> str:
    globs = sorted({glob.strip() for glob in text.split("+")})
    if not all(globs):
        allowed = "names of modules or globs, joined by +, as in 'head+blocks.*.norm'"
        raise UsageError(f"{option} takes {allowed}, not '{text}'.")
    return "+".join(globs)


# The readers of options.
_OPTIONS: dict[str, Reader] = {
    "scale": _scale,
    "init_scale": number("a number above 0", {"": 1}, LARGEST),
    "growth_interval": whole(1),
    "cache": _switch,
    "keep": _globs,
}
