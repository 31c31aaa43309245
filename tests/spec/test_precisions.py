import re
from dataclasses import replace

import pytest

from bench.spec.errors import UsageError
from bench.spec.precisions import (
    PRECISIONS,
    find_precision,
    parse_precision,
    precision_rank,
    unexpected_types_in_words,
)


@pytest.mark.parametrize(
    ("word", "name"), [("bf16x", "bf16"), ("FP32", "fp32"), ("amp-fp15", "amp-fp16")]
)
def test_the_nearest_precision_is_suggested(word, name):
    with pytest.raises(
        UsageError, match=rf"no precision '{word}'. Did you mean '{name}'\? Available: fp32, tf32"
    ):
        parse_precision(word)


@pytest.mark.parametrize(
    ("name", "computed", "reason"),
    [
        ("fp8-rowwise", "bfloat16:100%", "no product ran in float8, but in bfloat16:100%"),
        ("fp8-rowwise", "float8_e4m3fn:91% bfloat16:9%", ""),
        ("amp-bf16", "float32:100%", ""),
        ("amp-bf16", "bfloat16:100%", ""),
        ("fp8-rowwise", "", ""),
        ("bf16", "float32:100%", ""),
    ],
)
def test_products_prove_that_a_precision_ran(name, computed, reason):
    assert parse_precision(name).missed(computed) == reason


@pytest.mark.parametrize(
    ("name", "computed", "words"),
    [
        ("fp32", "bfloat16:100%", "100 % of its products in bfloat16"),
        (
            "fp32",
            "float16:60% bfloat16:40%",
            "60 % of its products in float16 and 40 % of its products in bfloat16",
        ),
        ("fp32", "float32:>99% bfloat16:<1%", "<1 % of its products in bfloat16"),
        ("fp32", "float32:100% bfloat16:?", "some of its products in bfloat16"),
        ("amp-fp16", "float16:70% bfloat16:30%", "30 % of its products in bfloat16"),
        ("amp-bf16", "float32:>99% bfloat16:<1%", ">99 % of its products in float32"),
        ("amp-fp16:keep=head", "float16:74% float32:26%", "26 % of its products in float32"),
        # Types that a precision allows.
        ("fp32", "float64:60% complex64:20% complex128:20%", ""),
        ("fp32", "float32:90% int64:10%", ""),
        ("default", "tf32:90% float32:10%", ""),
        ("amp-bf16", "bfloat16:90% tf32:10%", ""),
        ("amp-bf16", "bfloat16:75% float32:25%", ""),
        ("amp-bf16", "bfloat16:100% float32:?", ""),
        ("fp16-master", "float16:90% float32:10%", ""),
        ("fp8-tensorwise", "float8_e4m3fn:66% float8_e5m2:33% bfloat16:1%", ""),
        ("a script's arm", "bfloat16:100%", ""),
    ],
)
def test_products_in_other_types_than_the_precisions_are_told_with_their_share(
    name, computed, words
):
    assert unexpected_types_in_words(name, computed, "") == (f"computed {words}" if words else "")


@pytest.mark.parametrize(
    ("typed", "canonical", "changed"),
    [
        ("amp-fp16:init_scale=1024", "amp-fp16:init_scale=1024", {"init_scale": 1024.0}),
        (
            "amp-fp16:growth_interval=200, init_scale=1000.0",
            "amp-fp16:init_scale=1000,growth_interval=200",
            {"init_scale": 1000.0, "growth_interval": 200},
        ),
        ("amp-fp16:init_scale=1e-5", "amp-fp16:init_scale=1e-05", {"init_scale": 1e-5}),
        ("fp16-master:scale=128", "fp16-master:scale=128", {"scale": 128.0}),
        ("fp16-master:scale=dynamic", "fp16-master", {}),
        ("amp-bf16:cache=off", "amp-bf16:cache=off", {"cache": False}),
    ],
)
def test_options_change_their_field_alone_and_the_name_is_canonical(typed, canonical, changed):
    chosen = parse_precision(typed)
    assert chosen == replace(PRECISIONS[chosen.base], name=canonical, **changed)
    assert parse_precision(canonical) == chosen


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("amp-fp16:init_scal=8", "Did you mean 'init_scale'"),
        (
            "amp-bf16:init_scale=8",
            "There is no option of amp-bf16 'init_scale'. Available: cache, keep.",
        ),
        ("fp32:cache=off", "no option of fp32 'cache'. Available: none"),
        ("amp-fp16:", "no option of amp-fp16 ''"),
        ("amp-fp16:init_scale=0", "amp-fp16:init_scale takes a number above 0, not '0'"),
        ("amp-fp16:init_scale=nan", "not 'nan'"),
        ("amp-fp16:growth_interval=1.5", "growth_interval takes whole numbers from 1"),
        ("fp16-master:scale=static", "scale takes a number above 0, or dynamic, not 'static'"),
        ("amp-bf16:cache=no", "cache takes on or off, not 'no'"),
        ("amp-bf16:keep=head+", "names of modules or globs, joined by +"),
    ],
)
def test_a_wrong_option_gets_a_sentence_that_names_the_right_ones(typed, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse_precision(typed)
    assert find_precision(typed) is None


def test_variants_are_ranked_next_to_what_they_are_variants_of_and_the_unknown_last():
    names = ["new", "amp-bf16", "amp-fp16:init_scale=8", "fp32", "amp-fp16", "a:b=c"]
    ordered = ["fp32", "amp-fp16", "amp-fp16:init_scale=8", "amp-bf16", "a:b=c", "new"]
    assert sorted(names, key=precision_rank) == ordered
