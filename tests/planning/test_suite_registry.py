from pathlib import Path

import pytest
import torch

from bench.data import random_batches
from bench.planning import suite_registry
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from bench.spec.request import Request
from bench.training.step import build_arm, training_step


def test_parameters_are_converted_to_the_type_of_their_default():
    ref = suite_registry.refer("mlp", {"width": "64", "lr": "0.5", "unrelated": "1"})
    assert ref.parameters == (("lr", 0.5), ("width", 64))
    suite = suite_registry.load(ref)
    assert suite.model(suite.data)[0].weight.shape == (64, 64)


@pytest.mark.parametrize(
    ("name", "word", "kind"), [("width", "wide", "a whole number"), ("lr", "nan", ".*at most")]
)
def test_a_number_that_is_none_is_refused_with_the_word(name, word, kind):
    with pytest.raises(UsageError, match=f"--set {name} must be {kind}.*, not '{word}'"):
        suite_registry.refer("mlp", {name: word})


def test_the_example_in_the_documentation_is_short_and_runs(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "adding-a-suite.md").read_text()
    _, _, rest = page.partition("```python\n")
    code, _, _ = rest.partition("```")
    path = tmp_path / "my_model.py"
    path.write_text(code)
    ref = suite_registry.refer(str(path), {"hidden": "8"})
    suite = suite_registry.load(ref)
    arm = build_arm(suite, suite.data, PRECISIONS["amp-bf16"], torch.device("cpu"), seed=0)
    (batch,) = random_batches(suite.data, batch_size=2, count=1, device=arm.device, seed=0)
    assert torch.isfinite(training_step(arm, batch))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def suite(:\n  pass", "line 1"),
        ("import nothing_like_that\nsuite = None", "line 1: ModuleNotFoundError"),
        ("x = 1", "has no function suite()"),
        ("def suite(lr=None):\n  pass", "'lr' needs a default"),
        ("import sys\nsys.exit(3)\nsuite = None", "line 2: SystemExit"),
        ("class Stop(BaseException):\n  pass\ndef suite():\n  raise Stop", "line 4: Stop"),
        ("def suite():\n  return 1", "must return a bench.spec.Suite, not int"),
        ("def suite():\n  x = 0\n  return 1 / x", "line 3: ZeroDivisionError"),
    ],
)
def test_a_broken_suite_file_is_refused_with_the_line_at_fault(
    tmp_path, monkeypatch, text, sentence
):
    path = tmp_path / f"broken_{abs(hash(text))}.py"
    path.write_text(text)
    monkeypatch.chdir(tmp_path)
    for word in (str(path), path.name, f"./{path.name}"):
        with pytest.raises(UsageError) as caught:
            suite_registry.refer(word)
        assert sentence in str(caught.value)
        assert path.name in str(caught.value)


def test_a_training_script_is_not_run_to_see_that_it_is_no_suite(tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text("open('model.pt', 'w')\ndef main():\n    suite = 1\nmain()")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"was not run.*run_bench.py script"):
        suite_registry.refer(str(path))
    assert list(tmp_path.iterdir()) == [path]


def test_an_unknown_suite_gets_the_nearest_name():
    with pytest.raises(
        UsageError,
        match=r"no suite 'resnet5'. Did you mean 'resnet50'\? Available: cifar10_resnet18",
    ):
        suite_registry.refer("resnet5")


def test_a_swept_parameter_gives_a_suite_for_each_value_and_leaves_others_alone():
    sweep = (("width", ("64", "065", "64")),)
    request = Request(suites=("mlp", "resnet20"), parameters=(("lr", "0.5"),), sweep=sweep)
    selected = []
    for ref in suite_registry.select(request):
        selected.append((ref.name, dict(ref.parameters)))
    assert selected == [
        ("mlp", {"lr": 0.5, "width": 64}),
        ("mlp", {"lr": 0.5, "width": 65}),
        ("resnet20", {"lr": 0.5}),
    ]


SIZE = ("batch_size", "32")


@pytest.mark.parametrize(
    ("asked", "parameters", "batch_size"),
    [
        ({}, {"width": 1024}, 128),
        ({"batch_sizes": (64, 256)}, {"width": 1024}, 128),
        ({"parameters": (SIZE,)}, {"width": 1024}, 32),
        ({"parameters": (SIZE,), "batch_sizes": (64,)}, {"width": 1024}, 32),
        ({"sweep": (("batch_size", ("32",)),)}, {"batch_size": 32, "width": 1024}, None),
    ],
)
def test_a_batch_size_that_nobody_asked_for_or_that_others_replace_is_not_in_a_suites_name(
    asked, parameters, batch_size
):
    selected = suite_registry.select(Request(suites=("mlp",), **asked), on_cpu=True)
    ((ref, suite),) = selected.items()
    assert dict(ref.parameters) == parameters
    assert ref.batch_size == batch_size
    assert suite.batch_size == parameters.get("batch_size", batch_size)
