"""Models of timm, torchvision and transformers by name: each has its data and takes a step."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from bench.planning import suite_registry
from bench.spec.errors import UsageError
from bench.training.estimates import count_flops, footprint
from bench.training.pretrained import fetch
from bench.training.step import build_model
from tests.suites.conftest import suite_of, take_step
from tests.training.conftest import same

TEXT = {"vocab_size": 96, "hidden_size": 16, "intermediate_size": 16}
TEXT |= {"num_hidden_layers": 1, "num_attention_heads": 2}
LIMITED = {**TEXT, "max_position_embeddings": 24}
VISION = {**TEXT, "image_size": 32, "patch_size": 8}
TINY = {  # of each kind of task
    "bert": LIMITED,
    "llama": {**LIMITED, "num_key_value_heads": 2},
    "t5": {"vocab_size": 96, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    "vit": {**VISION, "id2label": {0: "a", 1: "b", 2: "c"}},
    "clip": {"text_config": LIMITED, "vision_config": VISION, "projection_dim": 8},
}


def needs(word):
    prefix = word.partition(":")[0]
    package = suite_registry.LIBRARIES[prefix]
    return pytest.importorskip(package, reason=f"pip install 'ampmeter[{prefix}]'")


def folder_of(kind, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    config = {"model_type": kind, **TINY[kind]}
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder}"


@pytest.mark.parametrize("word", ["timm:test_vit", "timm:test_resnet", "torchvision:squeezenet1_1"])
def test_a_model_of_images_takes_a_step_at_another_size(word):
    needs(word)
    suite = suite_of(word, image_size="64")
    assert suite.name == word
    assert suite.data.input_shape == (3, 64, 64)
    assert take_step(suite).isfinite()


def test_a_models_own_data_configuration_is_used():
    needs("timm:x")
    data = suite_of("timm:vit_base_patch16_224").data
    assert data.input_shape == (3, 224, 224)
    assert data.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("bert", "AutoModelForMaskedLM, 24 tokens"),
        ("llama", "AutoModelForCausalLM, 24 tokens"),
        ("t5", "AutoModelForSeq2SeqLM, 16 tokens"),
        ("vit", "AutoModelForImageClassification, 32×32"),
        ("clip", "AutoModelForZeroShotImageClassification, 32×32"),
    ],
)
def test_a_configuration_in_a_folder_is_trained_for_the_task_of_its_type(kind, task, tmp_path):
    needs("hf:x")
    lengths = {"sequence_length": "16"} if kind == "t5" else {}
    ref = suite_registry.refer(folder_of(kind, tmp_path / kind), lengths)
    assert ref.name == f"hf:{kind}"
    assert ref.file == str(tmp_path / kind)
    suite = suite_registry.load(ref)
    assert task in suite.title
    assert take_step(suite).isfinite()
    model = build_model(suite, suite.data)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert count_flops(ref) is not None
    assert footprint(ref).sample_bytes > 0


def test_an_edited_configuration_is_another_question(tmp_path):
    needs("hf:x")
    word = folder_of("bert", tmp_path)
    before = suite_registry.refer(word).digest
    folder_of("llama", tmp_path)
    assert suite_registry.refer(word).digest != before


def test_pretrained_weights_are_those_of_the_folder(tmp_path):
    transformers = needs("hf:x")
    word = folder_of("bert", tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    saved = transformers.AutoModelForMaskedLM.from_config(config)
    saved.save_pretrained(tmp_path)
    ref = suite_registry.refer(word, {"weights": "pretrained"})
    fetch(ref)
    suite = suite_registry.load(ref)
    model = build_model(suite, suite.data)
    assert same(saved.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("word", "settings", "sentence"),
    [
        ("timm:resnet5", {}, r"no model 'resnet5' in timm\. The nearest are timm:resnet50"),
        ("torchvision:resnet5", {}, "The nearest are torchvision:resnet50"),
        ("torchvision:raft_small", {}, "a model of optical flow, which cannot be trained by its"),
        ("hf:berd", {}, "The nearest are hf:bert"),
        ("hf:sam", {}, "transformers has no model of the type sam for"),
        ("hf:bert", {"weights": "pretrained"}, "a type has no weights"),
        ("hf:bert", {"sequence_length": "513"}, "sequence_length must be .* 512 at most"),
        ("timm:test_vit", {"optimizer": "lion"}, "optimizer must be adamw or sgd"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(word, settings, sentence):
    needs(word)
    with pytest.raises(UsageError, match=sentence):
        suite_registry.refer(word, settings)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    needs("hf:x")
    with pytest.raises(UsageError, match="folder has no configuration that transformers can read"):
        suite_registry.refer(f"hf:{tmp_path}")


def test_names_are_listed_by_pattern():
    assert "torchvision:resnet18" in suite_registry.matching("torchvision:resnet1*")
    # A mask R-CNN needs masks.
    detectors = suite_registry.matching("torchvision:*rcnn_resnet50_fpn")
    assert detectors == ["torchvision:fasterrcnn_resnet50_fpn"]


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("torchvision:rasnet50", "'torchvision:rasnet50'. Did you mean 'torchvision:resnet50'"),
        ("resnet*", r"list takes a library and a pattern, such as 'timm:\*'"),
    ],
)
def test_a_pattern_without_a_match_or_a_library_is_refused(pattern, sentence):
    with pytest.raises(UsageError, match=sentence):
        suite_registry.matching(pattern)


@pytest.mark.parametrize(("word", "extra"), [("timm:resnet18", "timm"), ("hf:bert", "hf")])
def test_a_library_that_is_not_installed_is_named_with_the_extra_that_installs_it(
    word, extra, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    advice = rf"which is not installed: pip install 'ampmeter\[{extra}\]'"
    with pytest.raises(UsageError, match=advice):
        suite_registry.refer(word)
