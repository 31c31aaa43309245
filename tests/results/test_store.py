import csv
import json
from dataclasses import replace

import pytest

from bench.results.columns import COLUMNS, SCHEMA
from bench.results.records import Block, Column, EpochResult, MemoryPeak, Sample, Switches, TrialResult
from bench.results.store import Store, finished, read_run
from bench.spec.errors import UsageError
from tests.arms import arms


def rows(folder, name):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def result(precision="fp32", status="ok", **more):
    return TrialResult(precision=precision, status=status, **more)


def test_a_result_is_one_row_with_units_in_names_and_empty_unknowns(tmp_path, tiny_trial, cpu):
    memory = MemoryPeak(peak_resident_bytes=1_000_000, model_bytes=0)
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result(memory=memory, switches=Switches(loss_scaling=False))])
    (row,) = rows(tmp_path / "run", "trials.csv")
    assert list(row) == list(COLUMNS["trials.csv"])
    assert (row["schema"], row["run"], row["suite"], row["batch_size"]) == (str(SCHEMA), "run", "tiny", "4")
    assert (row["peak_resident_bytes"], row["model_bytes"]) == ("1000000", "0")
    assert (row["peak_allocated_bytes"], row["speedup"], row["replicate"]) == ("", "", "")
    assert row["loss_scaling"] == "no"


def test_every_kind_of_record_has_its_file(tmp_path, tiny_trial, cpu):
    with Store(tmp_path / "run") as store:
        store.add([Block(trial="t", precision="fp32", round=0, position=1, steps=2, time_ms=0.1 + 0.2, start_s=5.0)])
        store.add([Sample(time_s=1.0, placement="0", uuid="GPU-a", power_w=250.0)])
        store.add(
            [
                EpochResult(
                    trial="t",
                    precision="fp32",
                    seed=0,
                    epoch=1,
                    train_loss=2.0,
                    test_loss=None,
                    test_accuracy_pct=None,
                    train_s=1.0,
                    test_s=None,
                    elapsed_s=1.0,
                    data_wait_s=0.1,
                    samples=8,
                    learning_rate=0.1,
                    loss_scale=None,
                    skipped_steps=0,
                )
            ]
        )
    assert float(rows(tmp_path / "run", "blocks.csv")[0]["time_ms"]) == 0.1 + 0.2
    assert rows(tmp_path / "run", "telemetry.csv")[0]["temperature_c"] == ""
    assert rows(tmp_path / "run", "epochs.csv")[0]["test_loss"] == ""


def test_a_row_is_on_disk_as_soon_as_it_is_added(tmp_path, tiny_trial, cpu):
    store = Store(tmp_path / "run")
    store.add_results(tiny_trial, cpu, [result()])
    assert len(rows(tmp_path / "run", "trials.csv")) == 1


def test_a_run_that_lacks_a_column_added_later_goes_on_in_its_own_columns(tmp_path, tiny_trial, cpu, monkeypatch):
    folder, added = tmp_path / "run", {"trials.csv": "wall_s", "blocks.csv": "skipped_steps"}
    block = Block(trial="t", precision="fp32", round=0, position=1, steps=2, time_ms=1.0, start_s=5.0, discarded="hot")
    with monkeypatch.context() as earlier:
        for file, name in added.items():
            earlier.setitem(COLUMNS, file, {key: one for key, one in COLUMNS[file].items() if key != name})
        with Store(folder) as store:
            store.add_results(tiny_trial, cpu, [result()])
            store.add([block])
    with pytest.raises(UsageError, match="lacks the column wall_s: the run may be older"):
        finished(folder)
    for file, name in added.items():
        later = replace(COLUMNS[file][name], column=Column(added_later=True))
        monkeypatch.setitem(COLUMNS, file, {**COLUMNS[file], name: later})
    assert finished(folder) == {tiny_trial.config: {"fp32": "ok"}}
    with Store(folder) as store:
        store.add_results(replace(tiny_trial, seed=1), cpu, [result(wall_s=3.0, detail="again")])
        store.add([block])
    first, second = rows(folder, "trials.csv")
    assert list(second) == [name for name in COLUMNS["trials.csv"] if name != "wall_s"]
    assert (first["seed"], second["seed"], second["detail"], second["status"]) == ("0", "1", "again", "ok")
    assert [row["discarded"] for row in rows(folder, "blocks.csv")] == ["hot", "hot"]


def test_a_torn_last_line_is_dropped_when_the_run_goes_on(tmp_path, tiny_trial, cpu):
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result()])
    with (tmp_path / "run" / "trials.csv").open("a") as file:
        file.write("1,run,half a li")
    with Store(tmp_path / "run") as store:
        store.add_results(replace(tiny_trial, seed=1), cpu, [result()])
    assert [row["seed"] for row in rows(tmp_path / "run", "trials.csv")] == ["0", "1"]


def test_finished_trials_are_known_by_their_config_and_failed_ones_are_tried_again(tmp_path, tiny_trial, cpu):
    speed = replace(tiny_trial, phase="speed", arms=arms("fp32", "amp-bf16"))
    hung = replace(tiny_trial, seed=7)
    with Store(tmp_path / "run") as store:
        store.add_results(speed, cpu, [result(), result("amp-bf16", "oom", detail="did not fit")])
        store.add_results(hung, cpu, [result(status="timeout")])
    assert finished(tmp_path / "run") == {speed.config: {"fp32": "ok", "amp-bf16": "oom"}}
    assert finished(tmp_path / "nowhere") == {}


def test_text_with_commas_and_quotes_survives(tmp_path, tiny_trial, cpu):
    detail = 'it said "no", then\nstopped'
    with Store(tmp_path / "run") as store:
        store.add_results(tiny_trial, cpu, [result(status="failed", detail=detail)])
    assert rows(tmp_path / "run", "trials.csv")[0]["detail"] == detail


def test_a_run_of_another_schema_is_refused(tmp_path):
    with Store(tmp_path / "run") as store:
        store.write_run({"request": {}})
    assert read_run(tmp_path / "run")["run"] == "run"
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": SCHEMA + 1}))
    with pytest.raises(UsageError, match=f"schema {SCHEMA + 1}; this version reads schema {SCHEMA}"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("text", ["{", "[]", "1"])
def test_a_damaged_run_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        read_run(tmp_path)
    (tmp_path / "trials.csv").write_text("no,columns,of,a,run\n1,2,3,4,5\n")
    with pytest.raises(UsageError, match="has no column schema"):
        finished(tmp_path)
