"""Every command of the README and of docs/commands.md runs.

``MEASURED`` has the commands that measure: this file plans each on a faked machine with two GPUs, and the test that the
table names measures the same feature. ``READ`` has the commands that read results: this file runs each on made-up runs.
``ELSEWHERE`` has the commands that only the named test runs.
"""

import ast
import re
import shlex
from dataclasses import replace

import pytest

from bench.script.prepare import prepare_script
from tests.conftest import TINY, call
from tests.golden.cases import explain, of_builder
from tests.planning.test_plan import gpu
from tests.report import cutting, fleet
from tests.run.test_prepare import Reading
from tests.test_docs import COMMAND, ROOT

PAGES = ("README.md", "docs/commands.md")
RUN = "tests/end_to_end/test_end_to_end.py::"
GPUS = "tests/simgpu/test_command_line.py::"
EACH_GPU = f"{GPUS}test_gpus_are_measured_one_after_the_other_and_together_and_nothing_is_left_behind"
WHOLE, EXPLAINED = (
    f"{RUN}test_from_images_to_rows",
    f"{RUN}test_explain_says_why_after_the_run_and_again_of_its_folder",
)
LARGEST = f"{RUN}test_the_largest_batch_is_found_then_measured_at_and_remembered"
QUICK = f"{RUN}test_a_run_ends_with_its_report"
LADDER = (
    "tests/phases/test_ladder.py::"
    "test_steps_that_do_not_fit_together_are_measured_apart_and_one_that_is_refused_is_left_out"
)
TEXT = "tests/run/test_prepare.py::test_a_texts_bytes_are_the_vocabulary_and_a_short_one_is_refused"
LIBRARY = "tests/suites/test_library.py::test_a_model_of_images_takes_a_step_at_another_size"
EXAMPLES = "tests/training/test_examples.py::test_an_example_is_measured_and_trained_in_two_precisions"
LAYERS = f"{GPUS}test_the_module_that_overflows_in_float16_is_found_and_kept"
NUMERICS = "tests/phases/test_numerics.py::"
SCRIPT = "tests/end_to_end/test_script.py::test_a_metronome_reads_what_it_is_set_to"
CONTINUED = f"{GPUS}test_a_training_goes_on_in_fp16_and_back_in_fp32_without_a_jump"
SEEDS = "tests/run/test_folder.py::test_added_seeds_are_the_runs_own_from_then_on"
SIDES = "tests/compare/test_interleave.py::test_a_side_is_a_suite_a_checkout_or_an_environment"
EXECUTE = "tests/run/test_execute.py::"
RAY = "tests/ray/"
PLAN = "tests/test_commands.py::test_a_measurement_is_planned"
MEASURED = {
    "--suite resnet50 --gpus 0,1": EACH_GPU,
    "--suite resnet50 --gpus all,0+1": EACH_GPU,
    "--suite resnet50 --gpus 0,0+1": EACH_GPU,
    "--suite resnet50 --gpus 0,1,0+1": EACH_GPU,
    "--suite mlp --gpus cpu": WHOLE,
    "--suite vit_b_16 --quick": QUICK,
    "--suite mlp,resnet50,vit_b_16 --quick": QUICK,
    "--suite my_model.py": WHOLE,
    "--suite my_training.py": EXAMPLES,
    "--suite timm:vit_base_patch16_224": LIBRARY,
    "--suite resnet20 --seeds 0,1,2,3,4 --epochs 30": SEEDS,
    "--suite resnet20 --data folder:IMAGES --epochs 2 --batch-sizes 64,128,256": WHOLE,
    "--suite resnet50 --batch-sizes 128,max": LARGEST,
    "--suite mlp,digits --within 90s": f"{EXECUTE}test_only_what_should_end_in_time_is_begun_and_the_rest_is_undecided",
    "--suite resnet50 --rigorous": "tests/end_to_end/test_faults.py::"
    "test_a_precision_that_hangs_costs_one_limit_and_not_one_in_each_phase_and_process",
    "--suite mlp --sweep width=4096,4097 --sweep batch_size=512,513": f"{RUN}"
    "test_a_sweep_is_a_row_for_each_combination_and_one_table",
    "--suite resnet50 --techniques channels-last,compile": "tests/phases/test_techniques.py::"
    "test_a_compiled_run_has_its_compile_time_in_rows_and_report",
    "--suite vit_b_16 --ladder": LADDER,
    "--suite vit_b_16 --ladder --techniques compile": LADDER,
    "--suite underflow --phases numerics": f"{NUMERICS}"
    "test_underflow_stalls_without_loss_scaling_and_with_nothing_else",
    "--suite underflow --phases numerics --precisions fp32,amp-fp16,amp-fp16-noscale": f"{NUMERICS}"
    "test_underflow_stalls_without_loss_scaling_and_with_nothing_else",
    "--suite gpt --clip-grad 1": "tests/training/test_step.py::"
    "test_clipping_limits_the_norm_of_the_gradients_themselves_not_of_the_scaled_ones",
    "--suite gpt --data text:FILE": TEXT,
    "--suite lstm --phases train,numerics --precisions fp32,amp-fp16-noscale,amp-fp16": PLAN,
    "explain --suite resnet50": EXPLAINED,
    "layers --suite my_model.py --precisions amp-bf16": LAYERS,
    "--suite resnet50 --phases inference": f"{GPUS}test_inference_agrees_with_fp32",
    "--suite resnet50 --set recipe=published": "tests/suites/test_suites.py::test_a_recipe_has_its_published_figures",
    "script --inject fp32,amp-bf16 -- train.py": SCRIPT,
    "--suite resnet50 --dry-run": PLAN,
    "--suite resnet20 --phases train --keep-checkpoints --out results/A": CONTINUED,
    "--suite resnet50 --on ray --accelerators V100,A100": f"{RAY}test_launcher.py::"
    "test_a_plan_over_two_accelerators_is_run_and_every_trial_is_accounted_for",
    "--suite resnet50 --on ray --accelerators V100,V100+V100": f"{RAY}test_multi_node_trials.py::"
    "test_two_nodes_train_together_and_one_of_them_alone",
}
"""What measures, with a test that measures so; its plan is made here."""
READ = (
    "report results/A results/B",
    "explain results/A",
    "report --published results/A",
    "report --figures all results/A",
    "compare results/OLD results/NEW",
    "compare results/OLD results/NEW --fail-over 3%",
    "list",
    "list 'timm:resnet*'",
)
"""What reads results, or the registries."""
ELSEWHERE = {
    "--help": "tests/cli/test_parser.py::test_the_script_exits_with_what_main_returns",
    "--suite resnet20 --phases train --precisions amp-fp16 --from results/A/checkpoints/TRIAL-e2.pt": CONTINUED,
    "--resume results/NAME": SEEDS,
    "--resume results/first-run": f"{EXECUTE}"
    "test_a_trial_that_is_slower_than_expected_is_ended_in_time_and_measured_when_the_run_goes_on",
    "compare old.py new.py --interleave DIR -- --quick": SIDES,
    "compare env-a env-b --interleave DIR -- --suite model.py": SIDES,
    "list --gpus": "tests/cli/test_listing.py::test_the_command_lists_this_machine",
    "doctor": "tests/doctor/test_doctor.py::test_a_healthy_cpu_passes",
}
"""What only the test that is named runs."""


def test_each_command_of_the_documents_has_an_entry_and_each_entry_is_in_a_document():
    texts = [match[1] for page in PAGES for match in COMMAND.finditer((ROOT / page).read_text())]
    assert {re.split(r"\s+#", text)[0].strip() for text in texts} == {*MEASURED, *READ, *ELSEWHERE}


def test_each_test_that_is_named_exists():
    for node in {*MEASURED.values(), *ELSEWHERE.values()}:
        file, _, name = node.partition("::")
        module = ast.parse((ROOT / file).read_text())
        assert name in {part.name for part in module.body if isinstance(part, ast.FunctionDef)}, node


class TwoGpus(Reading):
    """A launcher of a machine with two GPUs, whose placements exist as they are named."""

    def survey(self, gpus):
        names = [name for word in gpus or ("all",) for name in (("0", "1") if word == "all" else (word,))]
        devices = (replace(gpu(), placement=name) for name in names if name != "cpu")
        cpu = [device for device in self.environment.devices if "cpu" in names]
        return replace(self.environment, devices=(*cpu, *devices))

    def prepare_script(self, request):
        return request.script and prepare_script(request, request.script, self)

    def close(self):
        """Nothing was started."""


@pytest.mark.parametrize("command", MEASURED)
def test_a_measurement_is_planned(command, machine, tmp_path, monkeypatch):
    if "timm:" in command:
        pytest.importorskip("timm", reason="pip install 'ampmeter[timm]'")
    for name in ("my_model.py", "my_training.py"):
        (tmp_path / name).write_text(TINY)
    (tmp_path / "train.py").touch()
    (tmp_path / "FILE").write_text("text " * 10_000)
    (tmp_path / "IMAGES" / "train" / "class").mkdir(parents=True)
    monkeypatch.setattr("bench.launch.open_launcher", lambda request: TwoGpus(machine))
    options, mark, script = command.partition(" -- ")
    done = call(*shlex.split(options), "--dry-run", *shlex.split(mark + script), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "results").exists()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with the runs that the documents name."""
    folder = tmp_path_factory.mktemp("stored")
    results = folder / "results"
    of_builder(explain, results / "A")
    fleet.original(results / "B")
    for day in range(1, 7):
        run = fleet.original(results / ("OLD", "NEW")[day % 2] / f"run-{day}")
        cutting.begin(run, f"2026-01-0{day}")
    return folder


@pytest.mark.parametrize("command", READ)
def test_what_reads_results_or_registries_runs(command, stored):
    if "timm:" in command:
        pytest.importorskip("timm", reason="pip install 'ampmeter[timm]'")
    done = call(*shlex.split(command), cwd=stored)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
