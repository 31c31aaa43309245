"""Warnings and refusals before a run starts."""

import shlex
from contextlib import nullcontext
from dataclasses import replace

import pytest

from bench.cli.parser import parse
from bench.planning.batch_sizes import at_any_size
from bench.planning.plan import Plan
from bench.planning.prepared_suite import PreparedSuite
from bench.run.prepare import (
    check_batches,
    choose_source,
    prepare,
    warn_of_data,
    warn_of_emulation,
    warn_of_environment,
    warn_of_what_does_nothing,
)
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.request import Request
from bench.spec.suite import Data
from bench.worker.worker import prepare_data
from tests.planning.test_plan import REF, SUITE, gpu, plan


class Reading:
    """A launcher of this machine, which looks at data in this process, and of suites whose steps
    nobody counts.
    """

    def __init__(self, environment):
        self.environment = environment

    def survey(self, gpus):
        return self.environment

    def call(self, target, *arguments, **_limit):
        if target == "bench.worker.worker:prepare_data":
            return prepare_data(*arguments)
        return None


@pytest.fixture
def prepared(machine, tiny_file):
    """Return a function that prepares a run by words, of the tiny suite if they name none."""

    def prepared(words, environment=machine):
        suite = "" if "--suite" in words else f" --suite {tiny_file}"
        return prepare(parse(shlex.split(words + suite)), Reading(environment))

    return prepared


@pytest.mark.parametrize(
    ("asked", "device", "part"),
    [
        (
            {"phases": ("memory",)},
            {"bf16_gflops": 4.0},
            "25 times slower than fp32. amp-bf16 shows nothing",
        ),
        (
            {"phases": ("speed",)},
            {"bf16_gflops": 0.5},
            "200 times slower than fp32. amp-bf16 is left out",
        ),
        (
            {"precisions": ("fp32", "amp-bf16")},
            {"bf16_gflops": 4.0},
            "of memory and accuracy it does",
        ),
        ({"quick": True}, {"kind": "cuda", "compute_capability": "6.0"}, ""),
    ],
)
def test_what_is_emulated_is_warned_of_with_what_becomes_of_it(machine, cpu, asked, device, part):
    here = replace(machine, devices=(replace(cpu, **{"fp32_gflops": 100.0, **device}),))
    warnings = [*warn_of_emulation(here, Request(**asked), plan(here, flops=1e8, **asked))]
    (warning,) = warnings or [""]
    assert part in warning
    assert bool(warning) == bool(part)


@pytest.mark.parametrize(
    ("found", "warned"),
    [
        ({"removed_variables": ("NVIDIA_TF32_OVERRIDE=1",)}, "NVIDIA_TF32_OVERRIDE=1 was set"),
        (
            {"variables": ("CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_LAUNCH_BLOCKING=1")},
            "CUDA_LAUNCH_BLOCKING=1 is set",
        ),
        ({"variables": ("CUDA_LAUNCH_BLOCKING=0",)}, ""),
        ({"left_out": ("GPU 1 is left out.",)}, "GPU 1 is left out."),
    ],
)
def test_variables_that_were_unset_or_slow_every_step_are_warned_of(machine, found, warned):
    warnings = [*warn_of_environment(replace(machine, **found))]
    (warning,) = warnings or [""]
    assert warning.startswith(warned)
    assert bool(warning) == bool(warned)


@pytest.mark.parametrize(
    ("asked", "warned"),
    [
        ({"phases": ("memory", "energy")}, "GPU 0 tells neither energy nor power"),
        ({"phases": ("speed",), "precisions": ("tf32",)}, "fp32 is not among the precisions"),
        (
            {"phases": ("speed", "train"), "techniques": ("non-blocking", "prefetcher")},
            "No effect on speed, ",
        ),
        ({"phases": ("train",), "techniques": ("non-blocking", "prefetcher")}, ""),
    ],
)
def test_what_cannot_show_what_it_is_asked_for_is_warned_of(machine, asked, warned):
    here = replace(machine, devices=(gpu(),))
    planned = plan(machine, gpu(), **asked)
    warnings = [*warn_of_what_does_nothing(here, Request(**asked), planned)]
    (warning,) = warnings or [""]
    assert warned in warning
    assert bool(warning) == bool(warned)


def test_a_checkpoint_that_is_not_there_is_refused(prepared):
    with pytest.raises(
        UsageError, match=r"--from takes a checkpoint, .*there is no '/.*/nowhere\.pt'"
    ):
        prepared("--phases train --from nowhere.pt")


def test_a_ladder_to_several_mixed_precisions_is_refused_before_anything_is_prepared(prepared):
    with pytest.raises(
        UsageError, match=r"^A ladder climbs to one mixed precision: name one of amp-bf16, fp8-tens"
    ):
        prepared("--ladder --precisions fp32,amp-bf16,fp8-tensorwise", None)


@pytest.mark.parametrize(
    ("words", "placements"),
    [("", ["0", "2"]), ("--gpus all", ["0", "1", "2"]), ("--on ray", ["0", "1", "2"])],
)
def test_quick_takes_one_gpu_of_each_model_unless_devices_are_named(
    machine, prepared, words, placements
):
    devices = (
        gpu(0, name="A100"),
        gpu(1, name="A100"),
        gpu(2, name="T4"),
    )
    run = prepared(f"--quick {words}", replace(machine, devices=devices))
    assert [device.placement for device in run.environment.devices] == placements


def test_the_plan_that_is_made_anew_is_checked_as_the_first_was(prepared):
    words = "--batch-sizes max --precisions fp32 --phases speed --techniques grad-accumulation=3"
    run = prepared(words)
    (first,) = run.plan.trials  # it begins at 4, which the search makes a multiple
    cell = at_any_size(first.cell)
    for trial in run.replan({(cell, "fp32"): 9}).trials:
        assert trial.phase == "speed"
        assert trial.cell.batch_size == 9
    with pytest.raises(UsageError, match="10 cannot be divided into 3 equal parts"):
        run.replan({(cell, "fp32"): 10})


@pytest.mark.parametrize(
    ("phase", "missing", "refused"),
    [("train", 1, True), ("train", 0, False), ("ladder", 1, False), ("speed", 1, False)],
)
def test_an_epoch_without_a_whole_batch_is_refused_where_there_are_epochs(
    tiny_trial, phase, missing, refused
):
    trial = replace(tiny_trial, phase=phase)
    data = PreparedData(source=trial.cell.data, train_samples=4 - missing)
    suite = PreparedSuite(ref=trial.cell.suite, suite=SUITE, data=data)
    plan = Plan(trials=(trial,))
    with pytest.raises(UsageError, match="is larger than the") if refused else nullcontext():
        check_batches(plan, [suite])


VECTORS = replace(SUITE, name="vectors", data=Data(input_shape=(8,), target_shape=(8,)))
TOKENS = replace(
    SUITE,
    data=Data(input_shape=(8,), classes=256, tokens=True, source="markov"),
)


@pytest.mark.parametrize(
    ("suite", "asked", "kind"),
    [
        (SUITE, None, "cifar10"),
        (SUITE, "folder:.", "folder"),
        (VECTORS, "folder:.", "synthetic"),
        (TOKENS, None, "markov"),
        (TOKENS, "synthetic", "synthetic"),
        (TOKENS, "folder:.", "markov"),
        (TOKENS, f"text:{__file__}", "text"),
    ],
)
def test_a_suite_is_trained_on_the_data_asked_for_if_it_can_be(suite, asked, kind):
    assert choose_source(suite, Request(data=asked)).kind == kind


@pytest.mark.parametrize(
    ("suite", "asked", "sentence"),
    [
        (SUITE, "mnist", "--data must be cifar10"),
        (SUITE, "markov", "tokens"),
        (VECTORS, f"text:{__file__}", "--data text .*, and .* is trained on vectors"),
    ],
)
def test_data_that_a_suite_cannot_train_on_are_refused(suite, asked, sentence):
    with pytest.raises(UsageError, match=sentence):
        choose_source(suite, Request(data=asked))


@pytest.mark.parametrize("dry", ["", "--dry-run"])
def test_a_texts_bytes_are_the_vocabulary_and_a_short_one_is_refused(prepared, tmp_path, dry):
    path = tmp_path / "mine.txt"
    words = f"--suite gpt --phases train --precisions fp32 {dry} --data text:{path}"
    path.write_bytes(b"a" * 1000)
    run = prepared(words)
    (source,) = run.data
    assert source.train_tokens == 900
    assert source.validation_tokens == 100
    assert source.fingerprint is not None
    assert run.plan.trials[0].cell.classes == 256
    path.write_bytes(b"a" * 600)
    with pytest.raises(UsageError, match="has 600 bytes"):
        prepared(words)


def test_images_that_cannot_be_read_are_warned_of_with_their_number():
    source = DataSource(kind="folder", path="/pets")
    data = PreparedData(source=source, left_out=("a.png",) * 2000)
    suite = PreparedSuite(ref=REF, suite=SUITE, data=data)
    (warning,) = warn_of_data(Request(), [suite])
    assert warning == "folder:/pets: 2,000 unreadable images are left out, the first is 'a.png'."


def test_a_search_for_modules_needs_no_fp32_beside_it(prepared):
    run = prepared("layers --precisions amp-bf16")
    assert "not among the precisions" not in "".join(run.warnings)
