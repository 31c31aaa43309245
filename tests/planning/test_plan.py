from dataclasses import replace

import pytest

from bench.cli.parser import parse
from bench.planning import suite_registry
from bench.planning.max_batch import at_any_size
from bench.planning.plan import (
    Footprint,
    Forecast,
    estimate_s,
    make_plan,
    memory_trials,
    refusal_reason,
    resolve,
    step_s,
    unsupported_reason,
)
from bench.results.records import Device
from bench.spec.errors import UsageError
from bench.spec.suite import Data, Suite
from bench.spec.trial import DataSource, Placement, PreparedData, Protocol, Request, SuiteRef, Trial
from tests.arms import arms as steps

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
VECTORS = replace(SUITE, name="vectors", data=Data(input_shape=(8,), target_shape=(8,)))
REF = SuiteRef(name="small")
GIB = 2**30
SYNTHETIC = PreparedData(source=DataSource(kind="synthetic"))


def gpu(index=0, **more):
    return Device(placement=str(index), kind="cuda", name="Test GPU", architecture="Ampere", fp32_gflops=1e4, **more)


def plan(machine, *devices, largest=None, **asked):
    machine = replace(machine, devices=devices) if devices else machine
    return make_plan(Request(**asked), {REF: SUITE}, {REF: SYNTHETIC}, machine, {REF: 1e9}, largest=largest)


def estimated_s(trial, device, flops, data=SYNTHETIC):
    return estimate_s(trial, SUITE, data, device, step_s(trial, device, flops))


def arms(trials, phase):
    return [trial.precisions for trial in trials if trial.phase == phase]


def test_a_cpu_compares_fp32_with_bf16_at_its_own_batch_sizes_and_trains_the_recipe(machine):
    trials = plan(machine).trials
    in_order = [("memory", 8, ("fp32",)), ("memory", 8, ("amp-bf16",)), *[("speed", 8, ("fp32", "amp-bf16"))] * 3]
    in_order += [("train", 32, ("fp32",)), ("train", 32, ("amp-bf16",))]
    assert [(trial.phase, trial.cell.batch_size, trial.precisions) for trial in trials] == in_order
    assert {t.epochs for t in trials if t.phase == "train"} == {4}


def test_the_limit_on_silence_follows_long_steps_and_is_the_users_where_it_is_named(machine):
    slow, pair = gpu(0, memory_total_bytes=1), replace(gpu(0), placement="0+1", fp32_gflops=1e4)
    limits = {trial.phase: trial.silence_s for trial in plan(machine, slow, largest_batch=True).trials}
    assert limits == {"fit": 1800.0, "train": 600.0}
    assert {trial.silence_s for trial in plan(machine, slow).trials} == {600.0}
    snail = replace(slow, fp32_gflops=1.0)  # 160 s a step of 64 samples, in fp32
    (speed, *_) = [trial for trial in plan(machine, snail, batch_sizes=(64,)).trials if trial.phase == "speed"]
    assert speed.silence_s == pytest.approx(10 * 24 * 4 * 160)
    assert {trial.silence_s for trial in plan(machine, pair).trials} == {1800.0}
    asked = plan(machine, snail, trial_timeout_s=60.0).trials
    assert {trial.silence_s for trial in asked} == {60.0}
    assert asked[0].config == replace(asked[0], silence_s=1.0).config  # a resumption may have another limit


@pytest.mark.parametrize(
    ("named", "unsupported", "together"),
    [
        (None, (), ("fp32", "tf32", "amp-fp16", "amp-bf16")),  # an Ampere
        (None, ("tf32", "amp-bf16"), ("fp32", "amp-fp16")),  # a Pascal
        (("amp-bf16", "fp32"), (), ("fp32", "amp-bf16")),  # the baseline first, whatever the order
        (("fp32", "amp-fp16:init_scale=8"), ("amp-fp16",), ("fp32",)),  # options change nothing in what a device can do
    ],
)
def test_what_is_compared_is_what_the_device_can_and_with_a_librarys_float8_the_same_library_without_it(
    machine, named, unsupported, together
):
    device = gpu(unsupported=dict.fromkeys(unsupported, "no"))
    first, *rows = arms(plan(machine, device, precisions=named, batch_sizes=(4,), phases=("speed",)).trials, "speed")
    assert first == together
    assert {name for row in rows for name in row} == {*together, *(named or ())}


def test_only_precisions_that_no_device_can_do_are_refused_with_the_reason(machine):
    with pytest.raises(
        UsageError, match=r"Test CPU cannot do tf32: no TF32\. It can do: fp32, default, amp-fp16, amp-bf16"
    ):
        plan(machine, precisions=("tf32",))
    both = plan(machine, replace(machine.devices[0], name="Other"), gpu(), precisions=("tf32",)).trials
    assert {trial.cell.placement.name for trial in both} == {"cpu", "0"}


def test_a_precision_that_the_device_cannot_do_is_asked_for_alone_and_once_and_takes_no_time(machine):
    planned = plan(machine, replace(machine.devices[0], fp32_gflops=100.0), precisions=("tf32", "amp-bf16", "fp32"))
    assert arms(planned.trials, "memory") == [("fp32",), ("tf32",), ("amp-bf16",)]
    assert arms(planned.trials, "speed") == [("fp32", "amp-bf16")] * 3 + [("tf32",)]
    assert len({trial.id for trial in planned.trials}) == len(planned.trials)
    times = zip(planned.trials, planned.seconds, strict=True)
    assert {trial.precisions for trial, seconds in times if seconds == 0} == {("tf32",)}


def test_what_a_technique_keeps_from_running_takes_no_time(machine):
    able = replace(machine.devices[0], fp32_gflops=100.0)
    planned = plan(machine, able, techniques=("cuda-graphs",), phases=("fit", "memory", "speed", "train"))
    assert set(planned.seconds) == {0}
    phases = ("ladder_memory", "ladder")
    climbed = plan(machine, able, techniques=("cuda-graphs",), phases=phases)
    missing = {
        trial.precisions[0] for trial, seconds in zip(climbed.trials, climbed.seconds, strict=True) if not seconds
    }
    assert {name.split("+")[-1] for name in missing} == {"non-blocking", "cuda-graphs"}
    assert all(seconds > 0 for seconds in plan(machine, able, techniques=("compile",)).seconds)


def test_dropping_gradients_as_torch_does_is_no_workload_of_its_own(machine):
    trials = plan(machine, techniques=("set-to-none", "channels-last")).trials
    assert {trial.cell.techniques for trial in trials} == {("channels-last",)}
    named, plain = (plan(machine, techniques=names).trials for names in (("set-to-none",), ()))
    assert [trial.config for trial in named] == [trial.config for trial in plain]


def test_named_batch_sizes_are_trained_too_and_seeds_pair_the_precisions(machine):
    trials = plan(machine, batch_sizes=(16, 64), seeds=(0, 1), epochs=2).trials
    trained = [(t.cell.batch_size, t.seed, t.precisions[0]) for t in trials if t.phase == "train"]
    arms = ("fp32", "amp-bf16")
    assert trained == [(b, s, p) for b in (16, 64) for s in (0, 1) for p in (arms if s == 0 else arms[::-1])]
    assert {t.epochs for t in trials} == {1, 2}


def test_a_change_of_anything_asked_changes_the_config_and_nothing_else_does(machine):
    first, again = plan(machine).trials[2], plan(machine).trials[2]
    assert first.config == again.config
    for other in (
        replace(first, seed=1),
        replace(first, replicate=9),
        replace(first, arms=(first.arms[0],)),
        replace(first, protocol=Protocol(target_ci=0.02)),
        replace(first, cell=replace(first.cell, batch_size=9)),
        replace(first, cell=replace(first.cell, suite=SuiteRef(name="small", parameters=(("lr", 0.2),)))),
    ):
        assert other.config != first.config


def test_the_estimate_grows_with_work_and_is_unknown_without_flops(machine):
    short, long = (plan(machine, gpu(), epochs=epochs) for epochs in (1, 100))
    assert sum(short.seconds) < sum(long.seconds)
    trial, training = short.trials[0], next(trial for trial in long.trials if trial.phase == "train")
    real = PreparedData(source=DataSource(kind="cifar10"), train_samples=50_000)
    assert estimated_s(training, gpu(), 1e9, real) > 10 * estimated_s(training, gpu(), 1e9)
    both = replace(trial, cell=replace(trial.cell, placement=Placement(name="0+1")))  # which take longer to start
    assert estimated_s(both, gpu(), 1e9) == pytest.approx(estimated_s(trial, gpu(), 1e9) + 5)
    assert estimated_s(trial, gpu(), None) is None
    assert estimated_s(trial, gpu(), 1e9) < estimated_s(trial, gpu(), 1e12)


def test_training_goes_there_and_back_over_the_seeds_so_that_drift_favours_no_precision(machine):
    trials = [t for t in plan(machine, gpu(), seeds=(5, 3, 8, 1)).trials if t.phase == "train"]
    assert list(dict.fromkeys(trial.seed for trial in trials)) == [5, 3, 8, 1]
    places = {}
    for place, trial in enumerate(trials):
        places.setdefault(trial.precisions[0], []).append(place)
    assert {len(ranks) for ranks in places.values()} == {4}
    assert {sum(ranks) for ranks in places.values()} == {sum(range(16)) / 4}  # all the same on average
    assert [trial.precisions[0] for trial in trials[:2]] == ["fp32", "tf32"]


def test_a_target_reaches_trainings_alone_and_clipping_all_trials_and_their_configs(machine):
    asked, plain = plan(machine, target_accuracy_pct=93.0, clip_grad=1.0).trials, plan(machine).trials
    for trial, other in zip(asked, plain, strict=True):
        assert (trial.target_accuracy_pct, trial.clip_grad) == (93.0 if trial.phase == "train" else None, 1.0)
        assert trial.config != other.config


def test_an_emulated_precision_trains_and_has_no_speed_nor_memory_and_that_keeps_nothing_from_it(machine, cpu):
    asked = {"phases": ("memory", "speed", "train", "numerics"), "precisions": ("fp32", "mxfp8:emulated=on")}
    lacking = replace(cpu, unsupported={"mxfp8": "no MXFP8 here"})
    planned = plan(machine, lacking, **asked)
    emulated = [trial for trial in planned.trials if trial.precisions == ("mxfp8:emulated=on",)]
    refused = {trial.phase for trial in emulated if "it is emulated" in (refusal_reason(trial, lacking) or "")}
    assert refused == {"memory", "speed"}
    (memory,) = (trial for trial in emulated if trial.phase == "memory")
    done = {memory.config: {"mxfp8:emulated=on": "unsupported"}}
    left = {trial.phase for trial in emulated if resolve(trial, memory_trials(planned), done)}
    assert left == {"memory", "speed", "train", "numerics"}
    assert unsupported_reason(lacking, "mxfp8") == "no MXFP8 here"


@pytest.mark.parametrize("statuses", [("ok", "oom"), ("failed", "ok"), ("oom", "oom")])
def test_a_precision_whose_memory_one_of_two_processes_measured_fits(machine, statuses):
    planned = plan(machine, gpu(), phases=("memory", "speed"), precisions=("fp32", "amp-fp16"), batch_sizes=(32,))
    speed = next(trial for trial in planned.trials if trial.phase == "speed")
    readings = [trial for trial in planned.trials if trial.precisions == ("amp-fp16",)]
    done = {trial.config: {"amp-fp16": status} for trial, status in zip(readings, statuses, strict=True)}
    left = resolve(speed, memory_trials(planned), done).precisions
    assert left == (("fp32", "amp-fp16") if "ok" in statuses else ("fp32",))


def test_a_precision_that_a_cpu_emulates_is_left_out_unless_it_is_named(machine, cpu):
    emulating = replace(cpu, fp32_gflops=200.0, bf16_gflops=20.0)
    fast = replace(cpu, fp32_gflops=200.0, bf16_gflops=900.0)

    def arms(device, phase, **asked):
        return {
            name for trial in plan(machine, device, **asked).trials if trial.phase == phase for name in trial.precisions
        }

    assert arms(fast, "speed") == arms(fast, "train") == {"fp32", "amp-bf16"}
    assert arms(emulating, "speed") == arms(emulating, "train") == {"fp32"}
    assert arms(emulating, "train", precisions=("fp32", "amp-bf16")) == {"fp32", "amp-bf16"}
    steps_of_fp32 = {"fp32", "fp32+set-to-none", "fp32+set-to-none+prefetcher"}
    assert arms(emulating, "ladder_memory", phases=("ladder_memory",)) == steps_of_fp32
    named = arms(emulating, "ladder_memory", phases=("ladder_memory",), precisions=("fp32", "amp-bf16"))
    assert "amp-bf16+set-to-none" in named
    both = Trial(cell=plan(machine, fast).trials[0].cell, phase="speed", arms=steps("fp32", "amp-bf16"))
    long, short = (estimated_s(both, device, 1e12) for device in (emulating, fast))
    assert long > 5 * short


def test_what_is_about_several_devices_is_left_out_on_one_where_both_are_measured(machine):
    asked = {"techniques": ("channels-last", "sync-bn"), "phases": ("memory", "speed", "train")}
    both = replace(gpu(), placement="0+1", name="2 × Test GPU")
    cells = {(trial.cell.placement.name, trial.cell.techniques) for trial in plan(machine, gpu(), both, **asked).trials}
    assert cells == {("0", ("channels-last",)), ("0+1", asked["techniques"])}
    alone = plan(machine, gpu(0), gpu(1), **asked).trials
    assert {trial.cell.placement.name for trial in alone} == {"0", "1"}
    assert len({trial.id for trial in alone}) == len({trial.config for trial in alone}) == len(alone)
    assert {trial.cell.techniques for trial in alone} == {asked["techniques"]}


@pytest.mark.parametrize(("device", "quick", "processes"), [(gpu(), False, 2), (gpu(), True, 1), (None, False, 1)])
def test_memory_is_read_in_two_processes_of_a_gpu(machine, device, quick, processes):
    devices = [device] if device else []  # the machine has a CPU
    trials = plan(machine, *devices, precisions=("fp32",), batch_sizes=(32,), phases=("memory",), quick=quick).trials
    assert len({(trial.id, trial.config) for trial in trials}) == len(trials) == processes


def test_the_estimate_of_numerics_has_all_its_steps_and_grows_with_each(machine):
    (looked,) = plan(machine, gpu(), precisions=("fp32",), phases=("numerics",)).trials
    held = plan(machine, gpu(), precisions=("fp32",), batch_sizes=(32,), phases=("memory",)).trials[0]
    a_step_s = SUITE.batch_size * 1e12 / (0.4 * 1e13)  # FLOPs over the share of 10 TFLOP/s that a step is to reach

    def grown_s(trial):
        done = [estimated_s(trial, gpu(), flops) for flops in (1e12, 2e12)]
        return done[1] - done[0]

    assert looked.cell.batch_size == held.cell.batch_size == SUITE.batch_size
    assert grown_s(held) <= 10 * a_step_s
    assert grown_s(looked) >= 60 * a_step_s  # as many as are trained


@pytest.mark.parametrize(
    ("asked", "unsupported", "mixed"),
    [
        ({"precisions": ("fp32", "tf32", "amp-fp16")}, {}, "amp-fp16"),
        ({"precisions": ("amp-bf16:cache=off", "amp-bf16:cache=off")}, {}, "amp-bf16:cache=off"),
        ({}, {}, "amp-bf16"),
        ({}, {"amp-bf16": "Pascal"}, "amp-fp16"),
        ({"precisions": ("fp32", "tf32")}, {}, "fp32"),
    ],
)
def test_an_ablation_is_of_the_mixed_precision_named_or_else_the_devices(machine, asked, unsupported, mixed):
    planned = plan(machine, gpu(unsupported=unsupported), phases=("ladder_memory", "ladder"), **asked)
    steps = [step for trial in planned.trials for step in trial.arms]
    assert {step.precision for step in steps} == {"fp32", mixed}
    assert {step.precision for step in steps if step.techniques} == {mixed}
    assert {"+ set-to-none", "+ non-blocking", "+ prefetcher"} <= {step.added for step in steps}


def test_an_ablation_has_memory_step_by_step_and_all_together_in_each_process(machine):
    asked = {"techniques": ("channels-last",), "protocol": Protocol(replicates=2)}
    planned = plan(machine, gpu(), phases=("ladder_memory", "ladder"), **asked)
    memory = [trial for trial in planned.trials if trial.phase == "ladder_memory"]
    together = [trial for trial in planned.trials if trial.phase == "ladder"]
    assert [len(trial.arms) for trial in memory] == [1] * 6
    assert [(trial.replicate, trial.arms) for trial in together] == [
        (replicate, tuple(trial.arms[0] for trial in memory)) for replicate in (0, 1)
    ]
    assert {trial.cell.batch_size for trial in planned.trials} == {SUITE.batch_size}
    assert all(trial.cell.techniques == () for trial in planned.trials)
    assert all(second is not None for second in planned.seconds)


def test_a_runs_time_budget_reaches_every_phase_that_is_timed(machine):
    quick = Protocol(replicates=1, time_budget_s=3.0)
    phases = ("floor", "speed", "inference", "ladder")
    trials = plan(machine, gpu(), phases=phases, protocol=quick).trials
    assert {(trial.phase, trial.protocol) for trial in trials} == {(phase, quick) for phase in phases}


def plan_at_largest(machine, largest=None, **asked):
    asked = {"largest_batch": True, "precisions": ("fp32", "amp-fp16"), "batch_sizes": (), **asked}
    return plan(machine, gpu(energy="counter"), largest=largest, **asked)


def test_the_plan_looks_first_and_is_made_anew_with_what_was_found(machine):
    first = plan_at_largest(machine)
    assert [trial.phase for trial in first.trials] == ["fit", "fit", "train", "train"]
    assert first.seconds[0] is None
    assert {trial.cell.batch_size for trial in first.trials if trial.phase == "train"} == {SUITE.batch_size}
    searches = first.only(lambda trial: trial.phase == "fit").trials
    largest = {(at_any_size(trial.cell), trial.precisions[0]): 96 + 64 * n for n, trial in enumerate(searches)}
    again = plan_at_largest(machine, largest).trials
    at = {(t.phase, t.cell.batch_size): t.precisions for t in again if t.phase in ("speed", "train")}
    assert at == {
        ("speed", 96): ("fp32", "amp-fp16"),
        ("speed", 160): ("amp-fp16",),
        ("train", SUITE.batch_size): ("amp-fp16",),  # the second of two
    }
    assert not [trial for trial in again if trial.phase == "fit"]
    named = plan_at_largest(machine, largest, batch_sizes=(96,)).trials
    assert len({trial.config for trial in named}) == len(named)
    assert {t.cell.batch_size for t in named if t.phase == "train"} == {96}


@pytest.mark.parametrize(
    ("asked", "sizes", "measured"),
    [
        ({"phases": ("speed",), "precisions": ("fp32", "tf32")}, (64, 96), {64: {"fp32", "tf32"}, 96: {"tf32"}}),
        # a ladder has one mixed precision, though several were searched
        ({"precisions": (), "phases": ("ladder",)}, (96, 96, 96, 96), {96: {"fp32", "amp-bf16"}}),
        # the A/A noise needs fp32
        ({"phases": ("floor",)}, (96, 160), {96: {"fp32"}}),
    ],
)
def test_at_the_largest_batches_that_is_measured_which_fits(machine, asked, sizes, measured):
    searches = plan_at_largest(machine, **asked).trials
    names = [trial.precisions[0] for trial in searches if trial.phase == "fit"]
    largest = {(at_any_size(searches[0].cell), name): size for name, size in zip(names, sizes, strict=True)}
    at: dict[int, set[str]] = {}
    for trial in plan_at_largest(machine, largest, **asked).trials:
        at.setdefault(trial.cell.batch_size, set()).update(arm.precision for arm in trial.arms)
    assert at == measured


def test_the_time_left_is_learnt_from_trials_that_have_ended(machine):
    planned = plan(machine, gpu())
    forecast = Forecast(planned)
    assert forecast.left_s() == pytest.approx(sum(planned.seconds))
    memory = [index for index, trial in enumerate(planned.trials) if trial.phase == "memory"]
    forecast.end(memory[0], 3 * planned.seconds[memory[0]])
    rest = [seconds for index, seconds in enumerate(planned.seconds) if index != memory[0]]
    assert forecast.left_s() == pytest.approx(3 * sum(rest))  # nothing else is known of the other phases
    speed = [index for index, trial in enumerate(planned.trials) if trial.phase == "speed"]
    forecast.end(speed[0], planned.seconds[speed[0]])
    for index in range(len(planned.trials)):
        if index not in (memory[1], speed[0], memory[0]):
            forecast.skip(index)
    assert forecast.left_s() == pytest.approx(3 * planned.seconds[memory[1]])


@pytest.mark.parametrize(
    ("flops", "asked", "measured"),
    [
        (1e9, {}, ("fp32", "amp-bf16")),
        (1e12, {}, ("fp32",)),
        (None, {}, ("fp32",)),
        (1e12, {"phases": ("memory", "explain")}, ("fp32", "amp-bf16")),
        (1e12, {"phases": ("memory", "explain"), "precisions": ("fp32",)}, ("fp32",)),
    ],
)
def test_an_emulated_precision_is_measured_unasked_where_its_steps_are_short_or_to_be_explained(
    machine, cpu, *, flops, asked, measured
):
    slow = replace(machine, devices=(replace(cpu, fp32_gflops=100.0, bf16_gflops=40.0),))
    trials = make_plan(Request(**asked), {REF: SUITE}, {REF: SYNTHETIC}, slow, {REF: flops}).trials
    assert arms(trials, "memory") == [(name,) for name in measured]
    assert arms(trials, "explain") == ([measured] if asked else [])


def test_a_suite_trains_with_its_own_seeds_unless_others_are_named(machine):
    several = replace(SUITE, seeds=(0, 1, 2))
    planned = make_plan(Request(), {REF: several}, {REF: SYNTHETIC}, machine, {REF: 1e9})
    assert {trial.seed for trial in planned.trials if trial.phase == "train"} == {0, 1, 2}
    planned = make_plan(Request(seeds=(7,)), {REF: several}, {REF: SYNTHETIC}, machine, {REF: 1e9})
    assert {trial.seed for trial in planned.trials} == {7}


def test_the_time_of_types_whose_rate_nobody_measured_is_unknown(machine, cpu):
    slow = replace(machine, devices=(replace(cpu, fp32_gflops=100.0, unsupported={}),))
    names = ("fp32", "amp-fp16", "mxfp8:emulated=on")
    planned = plan(slow, precisions=names, phases=("numerics",))
    assert [seconds is None for seconds in planned.seconds] == [False, True, True]


FLOPS = {"mlp": 2.7e8, "digits": 5.5e6, "resnet20": 2.4e8, "gpt": 3.4e8, "resnet50": 7.8e9, "vit_b_16": 1.05e11}
FLOPS |= {"intel_resnet18": 1.4e10, "resnet18": 3.3e9, "underflow": 7.8e4}
"""Of a sample, in a training step."""
BF16, FP16 = ("fp32", "amp-bf16"), ("fp32", "amp-fp16")
BEFORE_AMPERE = {"amp-bf16": "not before Ampere"}


@pytest.mark.parametrize(
    ("device", "precisions", "most_s"),
    [
        ({"kind": "cpu", "fp32_gflops": 250.0, "bf16_gflops": 500.0}, BF16, 240),
        ({"kind": "cpu", "fp32_gflops": 250.0, "bf16_gflops": 240.0}, ("fp32",), 240),
        ({"compute_capability": "6.0", "fp32_gflops": 9e3, "unsupported": BEFORE_AMPERE}, ("fp32",), 60),
        ({"compute_capability": "7.0", "fp32_gflops": 14e3, "unsupported": BEFORE_AMPERE}, FP16, 60),
        ({"compute_capability": "7.5", "fp32_gflops": 7e3, "unsupported": BEFORE_AMPERE}, FP16, 60),
        ({"compute_capability": "8.0", "fp32_gflops": 18e3}, BF16, 60),
        ({"compute_capability": "9.0", "fp32_gflops": 50e3}, BF16, 60),
    ],
    ids=["CPU with bf16", "CPU without", "P100", "V100", "T4", "A100", "H100"],
)
def test_quick_compares_fp32_with_what_should_gain_most_in_a_minute(machine, device, precisions, most_s):
    machine = replace(machine, devices=(replace(gpu(), **device),))
    for name, flops in FLOPS.items():
        ref = suite_registry.refer(name)
        words = ["--suite", name, "--quick"]
        suites, data = {ref: suite_registry.load(ref)}, {ref: SYNTHETIC}
        planned = make_plan(parse(words), suites, data, machine, {ref: flops})
        assert [trial.precisions for trial in planned.trials if trial.phase == "speed"] == [precisions], name
        assert len({trial.cell.batch_size for trial in planned.trials}) == 1
        assert sum(planned.seconds) <= most_s, name
        named = make_plan(parse([*words, "--precisions", "fp32,tf32"]), suites, data, machine, {ref: flops})
        assert {trial.precisions for trial in named.trials if trial.phase == "speed"} == {("fp32", "tf32")}


def planned_by_memory(machine, device, footprint, ref=REF, **asked):
    suite, machine = replace(SUITE, batch_size=64, sized=True), replace(machine, devices=(device,))
    data, flops = {ref: SYNTHETIC}, {ref: 1e9}
    return make_plan(Request(**asked), {ref: suite}, data, machine, flops, footprints={ref: footprint}).trials


@pytest.mark.parametrize(
    ("sample_gib", "ref", "asked", "sizes"),
    [
        (1.0, REF, {}, {8}),  # 4 + 8 of 16 GiB; 4 + 16 are too many
        (None, REF, {}, {64}),
        (0.01, REF, {}, {64}),
        (1.0, replace(REF, batch_size=32), {}, {16, 32, 64}),  # as --set batch_size=32 leaves it
        (1.0, REF, {"batch_sizes": (48,)}, {48}),
    ],
)
def test_batch_sizes_that_nobody_named_are_halved_until_a_step_should_fit(machine, sample_gib, ref, asked, sizes):
    card = gpu(memory_total_bytes=16 * GIB)
    footprint = Footprint(GIB, 4 * GIB, None if sample_gib is None else sample_gib * GIB)
    trials = planned_by_memory(machine, card, footprint, ref, **asked)
    assert {trial.cell.batch_size for trial in trials if trial.phase == "memory"} == sizes


def test_what_cannot_fit_a_device_is_known_before_it_is_tried(machine):
    card, names = gpu(memory_total_bytes=16 * GIB), ("fp32", "amp-fp16", "bf16")
    footprint = Footprint(5 * GIB, 20 * GIB, None)
    trials = planned_by_memory(machine, card, footprint, precisions=names, phases=("memory", "speed", "inference"))
    unfit = {(trial.phase, trial.precisions) for trial in trials if trial.unfit}
    assert unfit == {("memory", ("fp32",)), ("memory", ("amp-fp16",))}  # 16-bit weights may fit, and inference does
    assert "take 20.0 GiB, and the device has 16.0 GiB" in next(trial.unfit for trial in trials if trial.unfit)
    assert trials[0].config == replace(trials[0], unfit="").config
    pair = planned_by_memory(machine, replace(card, placement="0+1", memory_total_bytes=32 * GIB), footprint)
    assert all(trial.unfit for trial in pair)  # each of them holds all of the model
