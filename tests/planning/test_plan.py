from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from bench.cli.parser import parse
from bench.planning import suite_registry
from bench.planning.batch_sizes import at_any_size
from bench.planning.footprint import Footprint
from bench.planning.plan import Plan, make_plan
from bench.planning.prepared_suite import PreparedSuite
from bench.results.records import Device
from bench.run.forecast import Forecast
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError
from bench.spec.phases import ABLATIONS, SELECTABLE
from bench.spec.protocol import Protocol
from bench.spec.request import Request
from bench.spec.suite import Data, Suite
from bench.spec.trial import SuiteRef
from tests.arms import arms as arms_of

SUITE = Suite(
    name="small",
    title="",
    data=Data(input_shape=(3, 8, 8), classes=2, source="cifar10"),
    model=lambda data: None,
    optimizer=lambda parameters: None,
    batch_size=32,
    batch_sizes=(16, 32, 64),
    cpu_batch_sizes=(8,),
    epochs=4,
)
REF = SuiteRef(name="small")
GIB = 2**30
SYNTHETIC = PreparedData(source=DataSource(kind="synthetic"))


def gpu(index=0, **more):
    ampere = Device(
        placement=str(index),
        kind="cuda",
        name="Test GPU",
        architecture="Ampere",
        fp32_gflops=1e4,
    )
    return replace(ampere, **more)


def plan(
    machine,
    *devices,
    suite=SUITE,
    ref=REF,
    data=SYNTHETIC,
    flops=1e9,
    largest=None,
    footprint=None,
    **asked,
):
    prepared = PreparedSuite(
        ref=ref, suite=suite, data=data, flops_per_sample=flops, footprint=footprint
    )
    machine = replace(machine, devices=devices or machine.devices)
    return make_plan(Request(**asked), [prepared], machine, largest)


@pytest.fixture
def trials(machine):
    """Return a function that plans trials on some devices; without any on the CPU."""

    def trials(*devices, **given):
        return plan(machine, *devices, **given).trials

    return trials


def arms(trials, phase):
    names = []
    for trial in trials:
        if trial.phase == phase:
            names.append(trial.arm_names)
    return names


def free_arms(trials):
    """Return the arms of the trials that take no time."""
    names = set()
    for trial in trials:
        if trial.estimate_s == 0:
            names.update(trial.arm_names)
    return names


def test_a_cpu_compares_fp32_with_bf16_at_its_own_batch_sizes_and_trains_the_recipe(trials):
    planned = trials()
    steps = []
    for trial in planned:
        steps.append((trial.phase, trial.cell.batch_size, *trial.arm_names))
    assert steps == [
        ("memory", 8, "fp32"),
        ("memory", 8, "amp-bf16"),
        ("speed", 8, "fp32", "amp-bf16"),
        ("speed", 8, "fp32", "amp-bf16"),
        ("speed", 8, "fp32", "amp-bf16"),
        ("train", 32, "fp32"),
        ("train", 32, "amp-bf16"),
    ]
    assert planned[-1].epochs == 4


def test_the_limit_on_silence_follows_long_steps_and_is_the_users_where_it_is_named(trials):
    def limits(device, **asked):
        return {trial.silence_s for trial in trials(device, **asked)}

    snail = gpu(fp32_gflops=1.0)
    assert max(limits(gpu())) < max(limits(snail))
    assert limits(snail, trial_timeout_s=60.0) == {60.0}


@pytest.mark.parametrize(
    ("named", "unsupported", "together"),
    [
        (None, (), ("fp32", "tf32", "amp-fp16", "amp-bf16")),  # an Ampere
        (None, ("tf32", "amp-bf16"), ("fp32", "amp-fp16")),  # a Pascal
        (("amp-bf16", "fp32"), (), ("fp32", "amp-bf16")),  # the baseline first, whatever the order
        (("fp32", "tf32", "amp-fp16:init_scale=8"), ("amp-fp16",), ("fp32", "tf32")),
    ],
)
def test_what_is_compared_is_what_the_device_can(trials, named, unsupported, together):
    device = gpu(unsupported=dict.fromkeys(unsupported, "no"))
    first, *_ = trials(device, precisions=named, phases=("speed",))
    assert first.arm_names == together


def test_only_precisions_that_no_device_can_do_are_refused_with_the_reason(trials, cpu):
    with pytest.raises(
        UsageError,
        match=r"Test CPU cannot do tf32: no TF32\. It can do: fp32, default, amp-fp16, amp-bf16",
    ):
        trials(precisions=("tf32",))
    both = trials(cpu, gpu(), precisions=("tf32",))
    assert {trial.cell.placement.name for trial in both} == {"cpu", "0"}


def test_a_precision_that_the_device_cannot_do_is_asked_for_alone_and_once_and_takes_no_time(
    trials, cpu
):
    device = replace(cpu, fp32_gflops=100.0)
    planned = trials(device, precisions=("tf32", "amp-bf16", "fp32"))
    assert arms(planned, "memory") == [("fp32",), ("tf32",), ("amp-bf16",)]
    assert arms(planned, "speed") == [("fp32", "amp-bf16")] * 3 + [("tf32",)]
    assert free_arms(planned) == {"tf32"}


@pytest.mark.parametrize(
    ("technique", "phase", "free"),
    [
        ("cuda-graphs", "train", {"fp32", "amp-bf16"}),
        (
            "cuda-graphs",
            "ladder",
            {"amp-bf16+set-to-none+non-blocking", "amp-bf16+set-to-none+prefetcher+cuda-graphs"},
        ),
        ("compile", "train", set()),
    ],
)
def test_what_a_technique_keeps_from_running_takes_no_time(trials, cpu, technique, phase, free):
    device = replace(cpu, fp32_gflops=100.0)
    assert free_arms(trials(device, techniques=(technique,), phases=(phase,))) == free


def test_dropping_gradients_as_torch_does_is_no_workload_of_its_own(trials):
    for trial in trials(techniques=("set-to-none", "channels-last")):
        assert trial.cell.techniques == ("channels-last",)


def test_named_batch_sizes_are_trained_too_and_every_other_seed_in_reverse(trials):
    trained = []
    for trial in trials(batch_sizes=(16,), seeds=(5, 3), epochs=2, phases=("train",)):
        assert trial.epochs == 2
        trained.append((trial.cell.batch_size, trial.seed, *trial.arm_names))
    assert trained == [
        (16, 5, "fp32"),
        (16, 5, "amp-bf16"),
        (16, 3, "amp-bf16"),
        (16, 3, "fp32"),
    ]


def test_the_trials_of_a_plan_have_names_of_their_own(trials):
    planned = trials(
        gpu(),
        phases=(*SELECTABLE, *ABLATIONS),
        batch_sizes=(16, 64),
        seeds=(0, 1),
        largest_batch=True,
    )
    assert len({trial.id for trial in planned}) == len(planned)


def test_the_estimate_grows_with_work_and_is_unknown_without_flops(trials):
    def estimate(**given):
        return trials(gpu(), phases=("train",), **given)[0].estimate_s

    real = PreparedData(source=DataSource(kind="cifar10"), train_samples=50_000)
    for more in ({"epochs": 100}, {"flops": 1e12}, {"data": real}):
        assert estimate() < estimate(**more)
    assert estimate(flops=None) is None


@pytest.mark.parametrize(
    ("bf16_gflops", "flops", "asked", "processes", "trained"),
    [
        (150.0, 1e9, {}, 3, {"fp32": 5, "amp-bf16": 5}),
        (20.0, 1e6, {}, 1, {"fp32": 1, "amp-bf16": 1}),  # a training takes seconds
        (20.0, 1e9, {}, 1, {"fp32": 1}),  # longer
        (20.0, 1e10, {}, 0, {"fp32": 5}),  # a step takes seconds
        (20.0, 1e10, {"precisions": ("fp32", "amp-bf16")}, 3, {"fp32": 5, "amp-bf16": 5}),
    ],
)
def test_what_a_cpu_emulates_is_measured_once_and_trained_once_where_that_takes_seconds(
    trials, cpu, *, bf16_gflops, flops, asked, processes, trained
):
    device = replace(cpu, fp32_gflops=200.0, bf16_gflops=bf16_gflops)
    suite = replace(SUITE, seeds=(0, 1, 2, 3, 4))
    planned = trials(device, suite=suite, flops=flops, **asked)
    assert arms(planned, "speed").count(("fp32", "amp-bf16")) == processes
    assert Counter(name for (name,) in arms(planned, "train")) == trained


def test_what_a_cpu_emulates_is_explained_however_long_its_step_is(trials, cpu):
    device = replace(cpu, fp32_gflops=200.0, bf16_gflops=20.0)
    planned = trials(device, flops=1e10, phases=("explain",))
    assert arms(planned, "explain") == [("fp32", "amp-bf16")]


def test_a_run_of_a_given_time_measures_the_speed_of_all_cells_by_turns_then_memory_then_training(
    trials,
):
    order = {}
    for trial in trials(batch_sizes=(8, 16), within_s=90.0):
        order[trial.phase, trial.replicate, trial.cell.batch_size] = None
    assert [*order] == [
        ("speed", 0, 8),
        ("speed", 0, 16),
        ("speed", 1, 8),
        ("speed", 1, 16),
        ("speed", 2, 8),
        ("speed", 2, 16),
        ("memory", 0, 8),
        ("memory", 0, 16),
        ("train", 0, 8),
        ("train", 0, 16),
    ]


@pytest.mark.parametrize(
    ("second", "techniques"), [("0+1", ("channels-last", "sync-bn")), ("1", ("channels-last",))]
)
def test_what_is_about_several_devices_is_left_out_on_one(trials, second, techniques):
    planned = trials(gpu(), gpu(second), techniques=("channels-last", "sync-bn"), phases=("speed",))
    of_placement = {}
    for trial in planned:
        of_placement[trial.cell.placement.name] = trial.cell.techniques
    assert of_placement == {"0": ("channels-last",), second: techniques}


@pytest.mark.parametrize(
    ("kind", "quick", "processes"), [("cuda", False, 2), ("cuda", True, 1), ("cpu", False, 1)]
)
def test_memory_is_read_in_two_processes_of_a_gpu(trials, kind, quick, processes):
    asked = {"precisions": ("fp32",), "batch_sizes": (32,), "phases": ("memory",)}
    planned = trials(gpu(kind=kind), quick=quick, **asked)
    assert [trial.replicate for trial in planned] == [*range(processes)]


@pytest.mark.parametrize(
    ("asked", "unsupported", "mixed"),
    [
        ({"precisions": ("fp32", "tf32", "amp-fp16")}, {}, "amp-fp16"),
        ({}, {}, "amp-bf16"),
        ({}, {"amp-bf16": "Pascal"}, "amp-fp16"),
        ({"precisions": ("fp32", "tf32")}, {}, "fp32"),
    ],
)
def test_an_ablation_is_of_the_mixed_precision_named_or_else_the_devices(
    trials, asked, unsupported, mixed
):
    *_, together = trials(gpu(unsupported=unsupported), phases=("ladder",), **asked)
    first, *others = together.arms
    assert first.precision == "fp32"
    assert {step.precision for step in others} == {mixed}


def test_an_ablation_has_memory_step_by_step_and_all_together_in_each_process(trials):
    planned = trials(
        gpu(),
        phases=("ladder",),
        techniques=("channels-last",),
        protocol=Protocol(replicates=2),
    )
    *memory, first, second = planned
    assert second.arms == first.arms
    for trial, step in zip(memory, first.arms, strict=True):
        assert trial.phase == "memory"
        assert trial.arms == (step,)
    for trial in planned:
        assert trial.cell.batch_size == SUITE.batch_size
        assert trial.cell.techniques == ()


@pytest.mark.parametrize("phase", ["floor", "speed", "inference", "ladder"])
def test_a_runs_time_budget_and_clipping_reach_every_phase_that_is_timed(trials, phase):
    quick = Protocol(replicates=1, time_budget_s=3.0)
    for trial in trials(gpu(), phases=(phase,), protocol=quick, clip_grad=1.0):
        assert trial.protocol == quick
        assert trial.clip_grad == 1.0


@pytest.fixture
def trials_at_largest(trials):
    """Return a function that plans trials at the largest batches, once they are known."""

    def trials_at_largest(largest=None, **asked):
        asked = {"precisions": ("fp32", "amp-fp16"), **asked}
        return trials(gpu(energy="counter"), largest=largest, largest_batch=True, **asked)

    return trials_at_largest


def searched(trials, *sizes):
    """Return the largest batches of what the trials search, which are of these sizes."""
    searches = [trial for trial in trials if trial.phase == "fit"]
    largest = {}
    for trial, size in zip(searches, sizes, strict=True):
        largest[at_any_size(trial.cell), trial.arm_names[0]] = size
    return largest


def test_the_plan_looks_first_and_is_made_anew_with_what_was_found(trials_at_largest):
    first = trials_at_largest()
    assert [trial.phase for trial in first] == ["fit", "fit", "train", "train"]
    again = trials_at_largest(searched(first, 96, 160))
    sizes = defaultdict(set)
    for trial in again:
        sizes[trial.phase, trial.arm_names].add(trial.cell.batch_size)
    assert sizes["speed", ("fp32", "amp-fp16")] == {96}
    assert sizes["speed", ("amp-fp16",)] == {160}
    assert sizes["train", ("amp-fp16",)] == {SUITE.batch_size}
    assert arms(again, "fit") == []


@pytest.mark.parametrize(
    ("asked", "sizes", "measured"),
    [
        (
            {"phases": ("speed",), "precisions": ("fp32", "tf32")},
            (64, 96),
            {64: {"fp32", "tf32"}, 96: {"tf32"}},
        ),
        # a ladder has one mixed precision, though several were searched
        ({"precisions": (), "phases": ("ladder",)}, (96, 96, 96, 96), {96: {"fp32", "amp-bf16"}}),
        # the A/A noise needs fp32
        ({"phases": ("floor",)}, (96, 160), {96: {"fp32"}}),
    ],
)
def test_at_the_largest_batches_that_is_measured_which_fits(
    trials_at_largest, asked, sizes, measured
):
    largest = searched(trials_at_largest(**asked), *sizes)
    at = defaultdict(set)
    for trial in trials_at_largest(largest, **asked):
        for arm in trial.arms:
            at[trial.cell.batch_size].add(arm.precision)
    assert at == measured


def forecast(*trials):
    return Forecast(Plan(trials=trials))


def end(expected, trial, took_s):
    expected.leave(trial)
    expected.learn(trial, took_s)


def test_the_time_left_is_learnt_from_trials_that_have_ended(tiny_trial):
    first = replace(tiny_trial, phase="memory", estimate_s=10.0)
    second = replace(first, estimate_s=20.0)
    speed = replace(first, phase="speed", estimate_s=30.0)
    train = replace(first, phase="train", estimate_s=40.0)
    expected = forecast(first, second, speed, train)
    assert expected.left_s() == 100.0
    end(expected, first, 30.0)
    assert expected.trial_s(second) == 60.0
    assert expected.left_s() == 60.0 + 30.0 + 40.0  # of other phases nothing is known
    end(expected, speed, 30.0)
    expected.leave(train)
    assert expected.left_s() == 60.0


def test_what_was_not_estimated_takes_as_long_as_what_has_ended_of_its_phase(tiny_trial):
    expected = forecast(tiny_trial, tiny_trial, tiny_trial)
    assert expected.trial_s(tiny_trial) == 0.0
    assert expected.left_s() is None
    end(expected, tiny_trial, 20.0)
    assert expected.trial_s(tiny_trial) == 20.0
    assert expected.left_s() == 40.0


def test_the_first_process_of_a_script_tells_how_long_the_rest_takes(tiny_trial):
    cell = replace(tiny_trial.cell, data=DataSource(kind="script"))
    memory = replace(tiny_trial, cell=cell)
    speed = replace(memory, phase="speed", arms=arms_of("fp32", "amp-bf16"))
    expected = forecast(memory, memory, speed, speed)
    assert expected.left_s() is None
    end(expected, memory, 10.0)
    assert expected.left_s() >= 10.0 + 2 * 4 * 10.0  # nine processes
    end(expected, memory, 10.0)
    end(expected, speed, 160.0)
    assert 80.0 < expected.left_s() < 240.0


def test_the_time_of_a_type_whose_rate_nobody_measured_is_unknown(trials, cpu):
    device = replace(cpu, fp32_gflops=100.0)
    fp32, fp16 = trials(device, precisions=("fp32", "amp-fp16"), phases=("numerics",))
    assert fp32.estimate_s is not None
    assert fp16.estimate_s is None


# Of a sample, in a training step.
FLOPS = {"mlp": 2.7e8, "digits": 5.5e6, "gpt": 3.4e8, "resnet50": 7.8e9, "vit_b_16": 1.05e11}
CPU = {"kind": "cpu", "fp32_gflops": 250.0, "bf16_gflops": 500.0}
P100 = {
    "compute_capability": "6.0",
    "fp32_gflops": 9e3,
    "unsupported": {"amp-bf16": "not before Ampere"},
}
A100 = {"compute_capability": "8.0", "fp32_gflops": 18e3}


@pytest.mark.parametrize("name", FLOPS)
@pytest.mark.parametrize(
    ("device", "mixed", "most_s"),
    [
        (CPU, "amp-bf16", 240),
        (P100, "amp-fp16", 60),
        (A100, "amp-bf16", 60),
    ],
    ids=["CPU", "P100", "A100"],
)
def test_quick_compares_fp32_with_what_should_gain_most_in_a_minute(
    machine, name, device, mixed, most_s
):
    ref = suite_registry.refer(name)
    suite = PreparedSuite(
        ref=ref,
        suite=suite_registry.load(ref),
        data=SYNTHETIC,
        flops_per_sample=FLOPS[name],
    )
    request = parse(["--suite", name, "--quick"])
    planned = make_plan(request, [suite], replace(machine, devices=(gpu(**device),))).trials
    assert arms(planned, "speed") == [("fp32", mixed)]
    assert len({trial.cell.batch_size for trial in planned}) == 1
    assert sum(trial.estimate_s for trial in planned) <= most_s


SIZED = replace(SUITE, batch_size=64, sized=True)


@pytest.mark.parametrize(
    ("sample_gib", "ref", "asked", "sizes"),
    [
        (1.0, REF, {}, {8}),  # 4 + 8 of 16 GiB; 4 + 16 are too many
        (0.01, REF, {}, {64}),
        (1.0, replace(REF, batch_size=32), {}, {16, 32, 64}),  # as --set batch_size=32 leaves it
        (1.0, REF, {"batch_sizes": (48,)}, {48}),
    ],
)
def test_batch_sizes_that_nobody_named_are_halved_until_a_step_should_fit(
    trials, sample_gib, ref, asked, sizes
):
    planned = trials(
        gpu(memory_total_bytes=16 * GIB),
        suite=SIZED,
        ref=ref,
        footprint=Footprint(GIB, 4 * GIB, sample_gib * GIB),
        phases=("memory",),
        **asked,
    )
    assert {trial.cell.batch_size for trial in planned} == sizes


def test_what_cannot_fit_a_device_is_known_before_it_is_tried(trials):
    def unfit(placement, memory_gib, *phases):
        planned = trials(
            gpu(placement, memory_total_bytes=memory_gib * GIB),
            suite=SIZED,
            footprint=Footprint(5 * GIB, 20 * GIB, None),
            precisions=("fp32", "amp-fp16", "bf16"),
            phases=phases,
        )
        return {(trial.phase, *trial.arm_names) for trial in planned if trial.unfit}

    # 16-bit weights may fit, and inference does.
    expected = {("memory", "fp32"), ("memory", "amp-fp16")}
    assert unfit("0", 16, "memory", "speed", "inference") == expected
    # Each of two devices holds all of the model.
    assert unfit("0+1", 32, "memory") == expected
