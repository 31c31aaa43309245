"""The ladder's rungs: their order, their names, and what stands on what."""

import pytest

from bench.cli.parser import parse
from bench.run.prepare import prepare
from bench.spec.ablation import ZEROED, AblationStep, arm_of, build_ablation, choose_mixed, parse_step, rebase
from bench.spec.errors import UsageError
from bench.spec.trial import Protocol
from tests.planning.test_max_batch import Surveyed
from tests.planning.test_plan import SUITE, gpu, plan

GPU_RUNGS = [
    "fp32",
    "amp-bf16",
    "amp-bf16+set-to-none",
    "amp-bf16+set-to-none+non-blocking",
    "amp-bf16+set-to-none+non-blocking+prefetcher",
]


WORDS = ["--suite", "mlp", "--data", "synthetic", "--gpus", "cpu"]


def laddered(precisions):
    return parse([*WORDS, "--ladder", "--precisions", precisions])


def test_each_rung_stands_on_the_one_before():
    ladder = build_ablation("amp-bf16", "cuda", ("channels-last", "set-to-none"))
    assert [rung.name for rung in ladder.steps] == [*GPU_RUNGS, f"{GPU_RUNGS[-1]}+channels-last"]
    assert ladder.missing == ()
    assert [rung.added for rung in ladder.steps[:4]] == ["fp32", "amp-bf16", "+ set-to-none", "+ non-blocking"]


def test_a_rung_that_the_device_cannot_do_is_left_out_of_those_above():
    ladder = build_ablation("amp-bf16", "cpu")
    assert [rung.name for rung in ladder.steps] == [*GPU_RUNGS[:3], "amp-bf16+set-to-none+prefetcher"]
    ((rung, reason),) = ladder.missing
    assert rung.name == GPU_RUNGS[3]
    assert "on a CPU nothing is copied" in reason


@pytest.mark.parametrize("name", [*GPU_RUNGS, "amp-fp16:init_scale=1e+3+set-to-none+grad-accumulation=4"])
def test_names_are_read_back(name):
    rung = parse_step(name)
    assert rung.name == name
    assert parse_step(name).precision == name.split("+set-to-none")[0]


def test_the_first_rungs_zero_gradients_and_the_third_does_not():
    rungs = build_ablation("amp-bf16", "cuda").steps
    assert [rung.settings.set_to_none for rung in rungs] == [False, False, True, True, True]
    assert AblationStep(precision="fp32").settings == ZEROED
    assert (rungs[3].settings.non_blocking, rungs[3].settings.prefetcher, rungs[4].settings.prefetcher) == (
        True,
        False,
        True,
    )


def test_the_mixed_precision_is_the_one_named_else_the_devices():
    assert choose_mixed(("fp32", "tf32", "amp-fp16"), {"amp-fp16": "no tensor cores"}) == "amp-fp16"
    assert choose_mixed(("amp-bf16:cache=off", "amp-bf16:cache=off"), {}) == "amp-bf16:cache=off"
    assert choose_mixed(None, {}) == "amp-bf16"
    assert choose_mixed(None, {"amp-bf16": "Pascal"}) == "amp-fp16"
    assert choose_mixed(("fp32",), {}) == "fp32"


def test_where_none_of_the_precisions_named_is_mixed_the_ladder_goes_without_amp(machine):
    planned = plan(machine, gpu(), phases=("ladder_memory", "ladder"), precisions=("fp32", "tf32"))
    climbed = {parse_step(name) for trial in planned.trials for name in trial.precisions}
    assert {rung.precision for rung in climbed} == {"fp32"}
    assert {rung.added for rung in climbed} == {"fp32", "+ set-to-none", "+ non-blocking", "+ prefetcher"}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("fp32,tf32", "and no mixed precision is named, so it stays there."),
        ("tf32,fp32,amp-fp16", "and goes on in amp-fp16."),
    ],
)
def test_tf32_which_has_no_rung_is_told_of(machine, named, said):
    (warning,) = (words for words in prepare(laddered(named), Surveyed(machine)).warnings if "ladder" in words)
    assert warning == f"The ladder has no rung of tf32: it starts at IEEE fp32, {said}"


def test_without_a_ladder_or_without_tf32_nothing_is_told(machine):
    for command in (laddered("fp32,amp-fp16"), parse([*WORDS, "--precisions", "fp32,tf32", "--phases", "memory"])):
        assert not [words for words in prepare(command, Surveyed(machine)).warnings if "ladder" in words]


def test_a_ladder_to_several_mixed_precisions_is_refused_before_anything_is_prepared():
    with pytest.raises(UsageError, match=r"^A ladder climbs to one mixed precision: name one of amp-bf16, fp8 in"):
        prepare(laddered("fp32,amp-bf16,fp8"), None)


def test_with_fp32_alone_or_where_the_mixed_precision_cannot_be_done_techniques_stand_on_fp32():
    alone = build_ablation("fp32", "cpu")
    refused = build_ablation("fp8", "cpu", unable="no FP8 here")
    for ladder in (alone, refused):
        assert [rung.name for rung in ladder.steps] == ["fp32", "fp32+set-to-none", "fp32+set-to-none+prefetcher"]
    assert [rung.name for rung, _ in alone.missing] == ["fp32+set-to-none+non-blocking"]
    assert (refused.missing[0][0].name, refused.missing[0][1]) == ("fp8", "no FP8 here")


def test_a_rung_that_does_not_work_is_left_out_of_all_above():
    planned = build_ablation("amp-bf16", "cuda", ("channels-last", "compile", "checkpointing")).steps
    broken = ("channels-last", "compile")
    standing = list(rebase(planned, lambda rung: not rung.techniques or rung.techniques[-1] not in broken))
    top = "amp-bf16+set-to-none+non-blocking+prefetcher"
    assert [rung.name for rung in standing[:5]] == GPU_RUNGS
    assert [rung.name for rung in standing[5:]] == [f"{top}+channels-last", f"{top}+compile", f"{top}+checkpointing"]
    assert [rung.previous and rung.previous.name for rung in standing] == [None, *GPU_RUNGS[:4], top, top, top]
    assert [rung.number for rung in standing] == [0, 1, 2, 3, 4, 5, 5, 5]
    assert [rung.rank for rung in standing] == sorted({rung.rank for rung in standing})


def test_precisions_that_do_not_work_and_rungs_that_are_not_all_there():
    planned = build_ablation("amp-bf16", "cuda").steps
    without_fp32 = list(rebase(planned, lambda rung: rung.name != "fp32"))
    assert without_fp32 == list(planned)
    on_fp32 = list(rebase(planned, lambda rung: rung.name != "amp-bf16"))
    assert [rung.precision for rung in on_fp32] == ["fp32", "amp-bf16", "fp32", "fp32", "fp32"]
    alone = [rung.name for rung in rebase(planned, lambda _: False)]
    assert alone == [
        "fp32",
        "amp-bf16",
        *(f"amp-bf16+{name}" for name in ("set-to-none", "non-blocking", "prefetcher")),
    ]
    some = [planned[0], planned[3]]
    assert list(rebase(some, lambda _: True)) == some


def test_a_rung_is_known_by_what_it_adds_and_a_precision_by_its_name():
    assert arm_of("ladder", "fp32+compile").added == arm_of("ladder_memory", "amp-bf16+set-to-none+compile").added
    assert arm_of("speed", "amp-bf16:x=1+2").added == "amp-bf16:x=1+2"


def test_the_plan_has_memory_rung_by_rung_and_all_together_in_each_process(machine):
    planned = plan(
        machine,
        gpu(),
        phases=("ladder_memory", "ladder"),
        techniques=("channels-last",),
        protocol=Protocol(replicates=2),
    )
    memory = [trial for trial in planned.trials if trial.phase == "ladder_memory"]
    together = [trial for trial in planned.trials if trial.phase == "ladder"]
    assert [trial.precisions[0] for trial in memory][:5] == GPU_RUNGS
    assert [(trial.replicate, len(trial.precisions)) for trial in together] == [(0, 6), (1, 6)]
    assert {trial.cell.batch_size for trial in planned.trials} == {SUITE.batch_size}
    assert all(trial.cell.techniques == () for trial in planned.trials)
    assert all(second is not None for second in planned.seconds)
