"""The report names each difference between runs once, and nothing that does not differ."""

from pathlib import Path

import pytest

from bench.report.analysis.comparability import warnings
from bench.report.reading.load import load
from tests.report import fleet
from tests.report.builders import RunBuilder
from tests.report.fleet import copy, original

REQUEST = {"suites": [{"name": "mlp", "digest": "aaa"}]}


def warned(*folders: Path) -> list[str]:
    runs = load(list(folders))
    return warnings(runs.runs, runs.trials)


def only(lines: list[str]) -> str:
    (line,) = lines
    return line


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    first = original(tmp_path / "a")
    fleet.edit_run(first, lambda run: run.update(request=REQUEST))
    return first, copy(first, tmp_path / "b", device="NVIDIA Test 1", architecture="Hopper")


def test_gpu_libraries_of_a_run_on_a_cpu_do_not_matter(pair):
    for folder in pair:
        fleet.edit_rows(folder, lambda row: fleet.place(row, "cpu"))
    fleet.edit_run(pair[1], lambda run: run["environment"].update(driver=None, cuda=None, cudnn=None))
    assert warned(*pair) == []


def test_other_software_is_named_with_both_values_and_runs(pair):
    software = {"torch": "2.11.0", "cuda": "12.6", "cudnn": "9.1", "driver": "550.1"}
    other = {"torch": "2.6.0", "cuda": "13.2", "cudnn": "9.9", "driver": None}
    for folder, known in zip(pair, (software, other), strict=True):
        fleet.edit_run(folder, lambda run, known=known: run["environment"].update(known))
    assert [line.partition(". ")[0] for line in warned(*pair)] == [
        "Different torch: 2.11.0 in a; 2.6.0 in b",
        "Different CUDA: 12.6 in a; 13.2 in b",
        "Different cuDNN: 9.1 in a; 9.9 in b",
        "Different driver: 550.1 in a; not known in b",
    ]


def test_another_limit_of_the_same_device_is_told_and_of_another_device_is_not(pair):
    names = ("power_limit_w", "sm_clock_limit_mhz", "threads")
    for folder, values in zip(pair, ((700.0, 1980, 8), (500.0, 1755, 4)), strict=True):
        limits = dict(zip(names, values, strict=True))
        fleet.edit_run(folder, lambda run, limits=limits: run["environment"]["devices"][0].update(limits))
    assert [line.partition(". ")[0] for line in warned(*pair)] == [
        "Different power limit of NVIDIA Test 1: 700 W in a's GPU 0; 500 W in b's GPU 0",
        "Different clock limit of NVIDIA Test 1: 1,980 MHz in a's GPU 0; 1,755 MHz in b's GPU 0",
        "Different threads of NVIDIA Test 1: 8 in a's GPU 0; 4 in b's GPU 0",
    ]
    fleet.edit_run(pair[1], lambda run: run["environment"]["devices"][0].update(name="Another"))
    assert warned(*pair) == []


def test_a_limit_of_several_placements_names_each_and_a_cpu_is_no_gpu(pair):
    def both(run):
        (device,) = run["environment"]["devices"]
        run["environment"]["devices"] = [device | {"placement": "cpu", "threads": 4}, device | {"placement": "cpu+cpu"}]

    fleet.edit_rows(pair[0], lambda row: fleet.place(row, "cpu+cpu" if row["precision"] == "fp32" else "cpu"))
    fleet.edit_run(pair[0], both)
    fleet.edit_run(pair[1], lambda run: run["environment"]["devices"][0].update(threads=8))
    assert "4 in a's cpu; not known in a's cpu+cpu; 8 in b's GPU 0." in " ".join(warned(*pair))


def another_batch(row: dict[str, str]) -> dict[str, str]:
    """The row at twice the batch size, its throughput with it."""
    return {"batch_size": "256", "samples_per_step": row["samples_per_step"] and "256"}


def another_epoch(row):
    row["epoch"] = row["epoch"].replace("2", "9")


@pytest.mark.parametrize(
    ("file", "change", "text"),
    [
        (None, lambda row: row.update(another_batch(row)), "Different batch sizes: 128 in a; 256 in b."),
        (None, lambda row: row.update(techniques="channels-last"), "Different techniques: none in a; channels-last in"),
        (None, lambda row: row.update(data="folder:/x"), "Different data trained on: synthetic in a; folder:/x in b."),
        ("epochs.csv", another_epoch, "Different number of epochs: 2 in a; 9 in b."),
        (
            None,
            lambda row: row["precision"] == "fp32" and row["fp32_matmul"] and row.update(fp32_matmul="tf32"),
            "arithmetic of fp32: ieee products, ieee convolutions in a; tf32 products, ieee convolutions in b.",
        ),
    ],
)
def test_another_question_is_warned(pair, file, change, text):
    fleet.edit_rows(pair[1], change, file)
    assert text in only(warned(*pair))


def test_a_common_batch_size_is_enough(pair, tmp_path):
    run = RunBuilder(tmp_path / "c").speed(batch=128).speed(batch=256).train("fp32", [90.0]).train("amp-bf16", [90.0])
    fleet.edit_run(run.folder, lambda info: info.update(request=REQUEST))
    assert warned(pair[0], run.folder) == []


def test_ten_runs_with_two_drivers_are_one_sentence(pair, tmp_path):
    more = [
        copy(pair[0], tmp_path / f"r{number}", device="NVIDIA Test 1", architecture="Hopper", driver=f"5{number % 2}0")
        for number in range(10)
    ]
    sentence = only(warned(*more))
    assert sentence.startswith("Different driver: 500 in r0, r2, r4 and 2 more; 510 in r1, r3, r5 and 2 more.")


def test_runs_without_a_common_recipe_need_no_caution(pair, tmp_path):
    alone = original(tmp_path / "alone", suite="resnet20")
    fleet.edit_run(alone, lambda run: run["environment"].update(driver="1"))
    assert warned(*pair, alone) == []


def test_a_suite_that_was_edited_is_told_with_what_it_means(pair):
    request = {"suites": [{"name": "mlp", "digest": "bbb"}]}
    fleet.edit_run(pair[1], lambda run: run.update(request=request))
    assert only(warned(*pair)).startswith(
        "Different versions of mlp (hash of its file, and of a script's arguments): aaa in a; bbb in b."
    )
