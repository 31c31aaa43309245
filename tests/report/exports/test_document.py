"""JSON documents: they fit the committed schema, and their figures are those of the summary and the CSVs."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import pytest

from bench.cli import listing
from bench.devices.processes import GpuProcess
from bench.report.analysis.compare import compare
from bench.report.exports import document
from bench.report.reading.load import load
from bench.results.records import Device, Numeric, Seen
from tests.conftest import call
from tests.report.ablations import whole
from tests.report.builders import GPU, RunBuilder, block
from tests.report.fleet import copy, original

ROOT = Path(__file__).resolve().parents[3]
SPEED = "mlp-0-b128-speed-r0"


@pytest.fixture(scope="module")
def check() -> Callable[[dict], dict]:
    """Raises where a document does not fit the committed schema; returns it as a reader has it."""
    committed = json.loads(document.PATH.read_text())
    jsonschema.Draft202012Validator.check_schema(committed)
    structs = document.documents()

    def read(exported: dict) -> dict:
        text = document.dumps(exported)
        msgspec.json.decode(text, type=structs)
        jsonschema.Draft202012Validator(committed).validate(json.loads(text))
        return json.loads(text)

    return read


@pytest.fixture(scope="module")
def exported(tmp_path_factory, check) -> dict:
    """The document of a run with every phase but inference, of which one seed diverged."""
    folder = original(tmp_path_factory.mktemp("runs") / "run")
    run = RunBuilder(folder).diverged("amp-bf16", seed=7)
    numerics = run.trial("numerics", ["fp32"], 128)
    run.result("numerics", "fp32")
    blocks = [
        block(
            SPEED,
            round=number // 2,
            position=number % 2,
            steps=3,
            time_ms=30.0 + number,
            discarded="throttled" if number > 1 else "",
        )
        for number in range(4)
    ]
    loss = Numeric(trial=numerics.id, precision="fp32", kind="step", step=0, layer="", name="loss", value=float("inf"))
    run.append(*blocks, loss)
    whole(RunBuilder(folder.with_name("ladder")))
    return check(document.report(load([folder, folder.with_name("ladder")])))


def of(exported: dict, **wanted: object) -> dict:
    """The only trial of a document with these values."""
    (trial,) = [trial for trial in exported["trials"] if all(trial.get(key) == value for key, value in wanted.items())]
    return trial


def test_the_committed_schema_is_that_of_the_code():
    assert json.loads(document.PATH.read_text()) == document.schema()


def test_the_committed_results_fit_the_schema(check):
    check(document.report(load([ROOT / "results"])))


def test_a_key_that_the_schema_does_not_know_is_noticed(check, exported):
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        check(exported | {"surprise": 1})


def test_a_result_has_its_figures_and_one_sample_for_each_process(exported):
    (row,) = [row for row in exported["results"] if row["run"] == "run" and row["precision"] == "amp-bf16"]
    assert row["speedup"] == pytest.approx(2.0, abs=0.01)
    assert row["process_speedups"] == pytest.approx([2.0, 2.02, 1.98])
    assert row["diverged_seeds"] == 1


def test_a_trial_has_its_blocks_and_what_is_unknown_is_left_out(exported):
    trial = of(exported, run="run", trial=SPEED, precision="fp32")
    assert trial["blocks"]["time_ms"] == [30.0, 31.0, 32.0, 33.0]
    assert trial["blocks"]["discarded"] == ["", "", "throttled", "throttled"]
    assert trial["steady"] is True
    assert "peak_allocated_bytes" not in trial


def test_a_training_has_its_epochs_and_a_loss_that_is_not_finite_is_null(exported):
    epochs = of(exported, run="run", phase="train", precision="amp-bf16", seed=7)["epochs"]
    assert [epoch.get("train_loss") for epoch in epochs] == [pytest.approx(1.35), None]


def test_a_training_whose_epochs_are_lost_has_none(check, tmp_path):
    folder = original(tmp_path / "run")
    (folder / "epochs.csv").unlink()
    trainings = [trial for trial in check(document.report(load([folder])))["trials"] if trial["phase"] == "train"]
    assert [trial.get("epochs") for trial in trainings] == [None] * 4


def test_answers_and_ablations_are_those_of_the_report(exported):
    answer = exported["answers"][0]
    assert (answer["workload"], answer["where"], answer["batch_size"]) == ("mlp", "NVIDIA Test 1", 128)
    assert (answer["use"], answer["accuracy"]) == ("fp32", "amp-bf16 diverged")  # in one seed
    (ablation,) = exported["ablations"]
    assert [step["precision"] for step in ablation["steps"][:2]] == ["fp32", "amp-bf16"]
    assert ablation["steps"][1]["speedup"] > 1


def test_what_list_shows_fits_the_schema(check):
    listed = check(listing.registries())
    assert {"mlp", "resnet20"} <= {suite["name"] for suite in listed["suites"]}
    assert listed["precisions"][0]["name"] == "fp32"


def test_the_devices_fit_the_schema(check, cpu):
    gpu = Device(placement="0", kind="cuda", name="Card", architecture="Hopper", uuid="GPU-1", unsupported={})
    user = GpuProcess(pid=7, user="ann", command=None, memory_bytes=None)
    seen = [Seen(device=gpu, memory_free_bytes=1), Seen(device=GPU, problem="lost"), Seen(device=cpu)]
    of_gpu, lost, of_cpu = check(listing.devices(seen, "", {"GPU-1": [user]}))["devices"]
    assert of_gpu["processes"][0]["user"] == "ann"
    assert (lost["problem"], lost["precisions"]) == ("lost", {})
    assert of_cpu["precisions"]["tf32"] == "unsupported: no TF32"
    assert of_cpu["processes"] is None


def test_a_comparison_fits_the_schema(check, tmp_path):
    old = original(tmp_path / "old")
    RunBuilder(old).lost("energy", "fp32", "unsupported")
    new = copy(old, tmp_path / "new", device="Card", architecture="Hopper", faster=0.7)
    exported = check(document.compare(compare(old, new, fail_over=0.03)))
    row = exported["rows"][0]
    assert row["speed"]["verdict"] == "REGRESSED"
    assert len(row["speed"]["samples_step_ms_old"]) == 3
    assert row["speed"]["step_ratio"] == pytest.approx(1 / 0.7, rel=0.01)
    assert row["energy"] is None
    assert exported["failures"]


@pytest.mark.parametrize("option", ["--published", "--figures=all", "--out=there"])
def test_json_goes_with_no_option_of_the_page(tmp_path, option):
    done = call("report", "--json", option, "run", cwd=tmp_path)
    assert done.returncode == 2
    assert option.split("=")[0] in done.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [(("report", "--json", "run"), '"peak_memory_bytes": 104857600'), (("list", "--json"), '"resnet20"')],
)
def test_what_is_for_programs_is_printed_and_nothing_is_written(tmp_path, words, part):
    RunBuilder(tmp_path / "run").memory("fp32", 100)
    done = call(*words, cwd=tmp_path)
    assert (done.returncode, part in done.stdout) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
