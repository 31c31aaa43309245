"""The words of `script`: arms, what is injected, and the command after two dashes."""

import pytest

from bench.cli import parser
from bench.script.command import COMMAND
from bench.spec.errors import UsageError


def parse(words):
    return COMMAND.run(parser.parse(words))


def test_the_command_is_all_that_follows_the_dashes():
    command = ["torchrun", "--nproc_per_node", "2", "a/train.py", "--steps", "9"]
    arms = ["--arm", "fp32=--dtype float32", "--arm", "amp-bf16=--dtype bfloat16"]
    request = parse(["script", *arms, "--steps", "20", "--", *command])
    assert request.suites == ("train.py",)
    script = request.script
    assert script.command == tuple(command)
    assert script.steps == 20
    assert script.name == "train.py"
    assert script.arms == (("fp32", "--dtype float32"), ("amp-bf16", "--dtype bfloat16"))


@pytest.mark.parametrize(
    "starter",
    ["", "python -m torch.distributed.run --nproc_per_node 2", "accelerate launch"],
)
def test_a_module_is_named_by_its_name_also_behind_a_starter(starter):
    words = f"script --inject fp32,amp-bf16 -- {starter} -m package.train"
    request = parse(words.split())
    assert request.script.main == "package.train"
    assert request.script.inject


@pytest.mark.parametrize(
    ("named", "arms"),
    [
        ("fp32,amp-bf16", ("fp32", "amp-bf16")),
        ("amp-bf16,amp-fp16", ("as-is", "amp-bf16", "amp-fp16")),
        ("amp-bf16,as-is,fp32", ("fp32", "amp-bf16", "as-is")),
    ],
)
def test_what_is_injected_is_compared_with_fp32_or_else_with_the_script_as_it_is(named, arms):
    request = parse(["script", "--inject", named, "--", "train.py"])
    assert tuple(dict(request.script.arms)) == arms


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--arm a= -- train.py", "--arm NAME=OPTIONS twice"),
        ("--arm a= --arm a=-x -- train.py", "a name of its own"),
        ("--arm a= --arm fp32= -- train.py", "put fp32 first"),
        ("--inject fp32,fp16 -- train.py", "amp-fp16"),
        ("--inject fp32,amp-bf16", "two dashes"),
        ("--inject fp32,amp-bf16 --gpus cpu+cpu -- train.py", "name --gpus cpu"),
        ("--arm a= --arm ../b= -- train.py", "without a slash"),
        ("--arm a= --arm b='unclosed -- train.py", "closing quotation"),
        ("--inject fp32,amp-bf16 -- python -c pass", "names no script"),
        ("-- train.py", "--arm --inject"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(words, why):
    with pytest.raises(UsageError, match=why):
        parse(["script", *words.split()])
