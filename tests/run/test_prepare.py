"""Warnings and refusals before a run starts."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from bench.cli.parser import parse
from bench.planning.batch_sizes import at_any_size
from bench.planning.plan import Plan
from bench.results.records import Device
from bench.run.prepare import (
    _unread,
    check_batches,
    choose_source,
    prepare,
    warn_of_emulation,
    warn_of_idle_techniques,
    warn_of_shared_algorithms,
    warn_of_variables,
    warn_of_what_devices_lack,
)
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.request import Request
from bench.spec.suite import Data
from bench.worker.worker import prepare_data
from tests.planning.test_plan import SUITE, gpu, plan

MLP = ["--suite", "mlp", "--data", "synthetic", "--gpus", "cpu"]
VECTORS = replace(SUITE, name="vectors", data=Data(input_shape=(8,), target_shape=(8,)))


class Surveyed:
    """A launcher of this machine, and of suites whose steps nobody counts."""

    def __init__(self, environment):
        self.environment = environment

    def survey(self, gpus):
        return self.environment

    def call(self, target, *_arguments):
        assert target == "bench.training.estimates:count_flops"


@pytest.mark.parametrize(
    ("words", "device", "part"),
    [
        (["--phases", "memory"], {"bf16_gflops": 4.0}, "25 times slower than fp32. amp-bf16 is measured once"),
        (["--quick"], {"bf16_gflops": 4.0}, "25 times slower than fp32. amp-bf16 is measured once"),
        (["--phases", "memory"], {"bf16_gflops": 0.5}, "200 times slower than fp32. amp-bf16 is left out"),
        (["--precisions", "fp32,amp-bf16"], {"bf16_gflops": 4.0}, "of memory and accuracy it does"),
        (["--quick"], {"kind": "cuda", "compute_capability": "6.0"}, None),
        (["--quick"], {"bf16_gflops": 300.0}, None),
    ],
)
def test_what_is_emulated_is_warned_of_with_what_becomes_of_it(machine, cpu, words, device, part):
    here = replace(machine, devices=(replace(cpu, **{"fp32_gflops": 100.0, **device}),))
    request = parse([*MLP, *words])
    asked = {name: getattr(request, name) for name in ("precisions", "phases", "quick")}
    warnings = warn_of_emulation(here, request, plan(here, flops=1e8, **asked))
    assert len(warnings) == (part is not None)
    assert part is None or part in warnings[0]


@pytest.mark.parametrize(
    ("found", "warning"),
    [
        ({"removed_variables": ("NVIDIA_TF32_OVERRIDE=1",)}, "NVIDIA_TF32_OVERRIDE=1 was set"),
        ({"variables": ("CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_LAUNCH_BLOCKING=1")}, "CUDA_LAUNCH_BLOCKING=1 is set"),
        ({"variables": ("CUDA_LAUNCH_BLOCKING=0",)}, None),
        ({"left_out": ("GPU 1 is left out.",)}, "GPU 1 is left out."),
    ],
)
def test_variables_that_were_unset_or_slow_every_step_are_warned_of(machine, found, warning):
    warnings = warn_of_variables(replace(machine, **found))
    assert [text[: len(warning or "")] for text in warnings] == ([warning] if warning else [])


def test_a_gpu_that_tells_no_energy_is_warned_of_where_energy_is_asked_for(machine, cpu):
    silent = replace(cpu, placement="1", kind="cuda")
    found = replace(machine, devices=(cpu, replace(silent, placement="0", energy="power"), silent))
    (warning,) = warn_of_what_devices_lack(found, Request(phases=("memory", "energy")))
    assert warning.startswith("GPU 1 tells neither energy nor power")
    assert warn_of_what_devices_lack(found, Request(phases=("memory",))) == []


@pytest.mark.parametrize(
    ("names", "count"), [(("fp32", "default", "tf32"), 1), (("fp32", "default"), 0), (("fp32", "tf32"), 0)]
)
def test_torchs_own_fp32_timed_in_one_process_with_tf32_is_warned_of(machine, names, count):
    assert len(warn_of_shared_algorithms(plan(machine, gpu(), precisions=names, phases=("speed",)))) == count
    assert not warn_of_shared_algorithms(plan(machine, gpu(), precisions=names, phases=("memory",)))


def test_techniques_of_the_input_pipeline_change_nothing_outside_training():
    (warning,) = warn_of_idle_techniques(Request(phases=("speed", "train"), techniques=("non-blocking", "prefetcher")))
    assert warning.startswith("No effect on speed, ")
    assert warning.endswith("non-blocking, prefetcher.")
    assert warn_of_idle_techniques(Request(phases=("train",), techniques=("prefetcher",))) == []


def test_a_ladder_to_several_mixed_precisions_is_refused_before_anything_is_prepared():
    with pytest.raises(
        UsageError, match=r"^A ladder climbs to one mixed precision: name one of amp-bf16, fp8-tensorwise in"
    ):
        prepare(parse([*MLP, "--ladder", "--precisions", "fp32,amp-bf16,fp8"]), None)


@pytest.mark.parametrize(
    ("words", "placements"),
    [([], ["0", "2"]), (["--gpus", "all"], ["0", "1", "2"]), (["--on", "ray"], ["0", "1", "2"])],
)
def test_quick_takes_one_gpu_of_each_model_unless_devices_are_named(machine, tiny_file, words, placements):
    known = {"kind": "cuda", "architecture": "", "fp32_gflops": 1e4}
    named = (("0", "A100"), ("1", "A100"), ("2", "T4"))
    devices = tuple(Device(placement=place, name=name, **known) for place, name in named)
    request = parse(["--suite", str(tiny_file), "--quick", *words])
    prepared = prepare(request, Surveyed(replace(machine, devices=devices)))
    assert [device.placement for device in prepared.environment.devices] == placements


def test_the_plan_that_is_made_anew_is_checked_as_the_first_was(machine, tiny_file):
    words = ["--suite", str(tiny_file), "--batch-sizes", "max", "--precisions", "fp32", "--phases", "speed"]
    prepared = prepare(parse([*words, "--techniques", "grad-accumulation=3"]), Surveyed(machine))
    (first,) = prepared.plan.trials  # it begins at 4, which the search makes a multiple
    cell = at_any_size(first.cell)
    again = prepared.replan({(cell, "fp32"): 9})
    assert {(trial.phase, trial.cell.batch_size) for trial in again.trials} == {("speed", 9)}
    with pytest.raises(UsageError, match="10 cannot be divided into 3 equal parts"):
        prepared.replan({(cell, "fp32"): 10})


def test_what_a_device_cannot_do_takes_no_time(machine, tiny_file):
    words = ["--suite", str(tiny_file), "--gpus", "cpu", "--quick", "--techniques", "cuda-graphs", "--phases", "speed"]
    assert set(prepare(parse(words), Surveyed(machine)).plan.seconds) == {0}


@pytest.mark.parametrize(("phase", "refused"), [("train", True), ("ladder", False), ("speed", False)])
def test_an_epoch_without_a_whole_batch_is_refused_where_there_are_epochs(machine, phase, refused):
    made = plan(machine, gpu())
    one = replace(made.trials[0], phase=phase)
    few = {one.cell.suite: PreparedData(source=one.cell.data, train_samples=one.cell.batch_size - 1)}
    with pytest.raises(UsageError, match="is larger than the") if refused else nullcontext():
        check_batches(Plan(trials=(one,), seconds=(None,)), few)
    enough = {one.cell.suite: PreparedData(source=one.cell.data, train_samples=one.cell.batch_size)}
    check_batches(Plan(trials=(one,), seconds=(None,)), enough)


def test_data_that_are_no_images_stay_synthetic(tmp_path):
    asked = Request(data=f"folder:{tmp_path}")
    assert choose_source(SUITE, asked).kind == "folder"
    assert choose_source(VECTORS, asked).kind == "synthetic"
    assert choose_source(SUITE, Request()).kind == "cifar10"


def test_tokens_come_from_the_chain_unless_random_ones_are_asked_for(tmp_path):
    words = replace(SUITE, data=Data(input_shape=(8,), classes=256, tokens=True, source="markov"))
    asked = {None: "markov", "markov": "markov", "synthetic": "synthetic", f"folder:{tmp_path}": "markov"}
    assert {word: choose_source(words, Request(data=word)).kind for word in asked} == asked
    with pytest.raises(UsageError, match="tokens"):
        choose_source(SUITE, Request(data="markov"))
    (tmp_path / "mine.txt").touch()
    text = Request(data=f"text:{tmp_path / 'mine.txt'}")
    assert choose_source(words, text).kind == "text"
    for suite, has in ((SUITE, "images"), (VECTORS, "vectors")):
        with pytest.raises(UsageError, match=f"--data text .*, and .* is trained on {has}"):
            choose_source(suite, text)


class Reading(Surveyed):
    """The same, which looks at data in this process."""

    def call(self, target, *arguments):
        return prepare_data(*arguments, None) if target == "bench.worker.worker:prepare_data" else None


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_texts_bytes_are_the_vocabulary_and_a_short_one_is_refused(machine, tmp_path, dry):
    words = ["--suite", "gpt", "--phases", "train", "--precisions", "fp32", *dry]
    (tmp_path / "mine.txt").write_bytes(b"a" * 1000)
    prepared = prepare(parse([*words, "--data", f"text:{tmp_path / 'mine.txt'}"]), Reading(machine))
    (source,) = prepared.data
    assert (source.train_tokens, source.validation_tokens) == (900, 100)
    assert source.fingerprint is not None
    assert {trial.cell.classes for trial in prepared.plan.trials} == {256}
    (tmp_path / "short.txt").write_bytes(b"a" * 600)
    with pytest.raises(UsageError, match="has 600 bytes"):
        prepare(parse([*words, "--data", f"text:{tmp_path / 'short.txt'}"]), Reading(machine))


def test_images_that_cannot_be_read_are_warned_of_with_their_number():
    data = PreparedData(source=DataSource(kind="folder", path="/pets"), left_out=("a.png",) * 2000)
    assert _unread(data) == "folder:/pets: 2,000 unreadable images are left out, the first is 'a.png'."


def test_a_search_for_modules_needs_no_fp32_beside_it(machine, tiny_file):
    prepared = prepare(parse(["layers", "--suite", str(tiny_file), "--precision", "amp-bf16"]), Surveyed(machine))
    assert not [warning for warning in prepared.warnings if "not among the precisions" in warning]
