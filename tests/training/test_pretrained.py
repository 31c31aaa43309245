"""Initial weights: none, ImageNet's, or a file's; and what cannot be had."""

from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision import models

from bench.planning import suite_registry
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from bench.training.pretrained import fetch, pretrained
from tests.conftest import call
from tests.training.conftest import same


def resnet18(num_classes):
    """A model of two layers under a name whose weights torchvision has."""
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, num_classes))


def build(weights, classes=2):
    torch.manual_seed(1)
    return pretrained(resnet18, str(weights), Data(input_shape=(4,), classes=classes))


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "kept.pt"
    torch.save(resnet18(5).state_dict(), path)
    return path


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A machine without network, whose torch.hub folder is empty."""

    def unreachable(*_arguments, **_options):
        raise URLError("no network here")

    monkeypatch.setattr(torch.hub, "urlopen", unreachable)
    before = torch.hub.get_dir()
    torch.hub.set_dir(tmp_path / "hub")
    yield tmp_path / "hub" / "checkpoints"
    torch.hub.set_dir(before)


def test_a_files_weights_are_taken_and_the_last_layer_only_where_its_classes_are_the_same(kept):
    state = torch.load(kept, weights_only=True)
    assert same(build(kept, classes=5).state_dict(), state)
    body, head = build(kept)
    _, untrained = build("none")
    assert torch.equal(body.weight, state["0.weight"])
    assert torch.equal(head.weight, untrained.weight)


def test_weights_of_another_model_are_refused_by_name(kept):
    state = torch.load(kept, weights_only=True)
    torch.save({**state, "0.weight": torch.zeros(7, 4), "2.bias": torch.zeros(1)}, kept)
    with pytest.raises(
        UsageError, match=r'not those of this model: Unexpected .*"2\.bias".*0\.weight.*\[7, 4\]'
    ):
        build(kept)


@pytest.mark.parametrize("content", [nn.Linear(2, 2), None])
def test_a_file_that_holds_no_weights_is_refused(tmp_path, content):
    path = tmp_path / "x.pt"
    path.write_text("not tensors")
    if content is not None:
        torch.save(content, path)  # of a whole module, weights_only loads nothing
    with pytest.raises(UsageError, match="holds no state dict"):
        build(path)


def test_imagenets_weights_are_found_where_torchvision_keeps_them(hub):
    hub.mkdir(parents=True)
    original = models.resnet18()
    file = Path(models.ResNet18_Weights.DEFAULT.url).name
    torch.save(original.state_dict(), hub / file)
    data = Data(input_shape=(3, 32, 32), classes=6)
    model = pretrained(models.resnet18, "imagenet", data)
    assert torch.equal(model.conv1.weight, original.conv1.weight)
    assert model.fc.out_features == 6


def test_without_network_the_sentence_says_what_to_do(hub):
    with pytest.raises(
        UsageError, match=r"are not in '.*checkpoints'.*\(no network here\).*--weights PATH"
    ):
        fetch(suite_registry.refer("intel_resnet18", {}))
    fetch(suite_registry.refer("intel_resnet18", {"weights": "none"}))


def test_on_the_meta_device_no_weights_are_looked_for(hub):
    with torch.device("meta"):
        assert build("imagenet")[0].weight.is_meta


def test_weights_that_cannot_be_had_end_the_program_before_anything_is_measured(tmp_path):
    words = "--suite intel_resnet18 --gpus cpu --out out --weights nowhere.pt"
    done = call(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    missing = tmp_path / "nowhere.pt"
    assert f"There is no weights file '{missing}'" in done.stderr
    assert list(tmp_path.iterdir()) == []
