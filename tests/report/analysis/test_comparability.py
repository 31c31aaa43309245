"""The report names each difference between runs once, and nothing that does not differ."""

from pathlib import Path

import pytest

from bench.report.analysis.comparability import warnings
from bench.report.reading.load import load
from tests.report import fleet
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
    fleet.edit_run(
        pair[1], lambda run: run["environment"].update(driver=None, cuda=None, cudnn=None)
    )
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
        fleet.edit_run(
            folder, lambda run, limits=limits: run["environment"]["devices"][0].update(limits)
        )
    assert [line.partition(". ")[0] for line in warned(*pair)] == [
        "Different power limit of NVIDIA Test 1: 700 W in a; 500 W in b",
        "Different clock limit of NVIDIA Test 1: 1,980 MHz in a; 1,755 MHz in b",
        "Different threads of NVIDIA Test 1: 8 in a; 4 in b",
    ]
    fleet.edit_run(pair[1], lambda run: run["environment"]["devices"][0].update(name="Another"))
    assert warned(*pair) == []


def another_epoch(row):
    row["epoch"] = row["epoch"].replace("2", "9")


@pytest.mark.parametrize(
    ("file", "change", "text"),
    [
        (
            None,
            lambda row: row.update(techniques="channels-last"),
            "Different techniques: none in a; channels-last in",
        ),
        (
            None,
            lambda row: row.update(data="folder:/x"),
            "Different data trained on: synthetic in a; folder:/x in b.",
        ),
        ("epochs.csv", another_epoch, "Different number of epochs: 2 in a; 9 in b."),
    ],
)
def test_another_question_is_warned(pair, file, change, text):
    fleet.edit_rows(pair[1], change, file)
    assert text in only(warned(*pair))


def test_ten_runs_with_two_drivers_are_one_sentence(pair, tmp_path):
    more = [
        copy(
            pair[0],
            tmp_path / f"r{number}",
            device="NVIDIA Test 1",
            architecture="Hopper",
            driver=f"5{number % 2}0",
        )
        for number in range(10)
    ]
    sentence = only(warned(*more))
    assert sentence.startswith(
        "Different driver: 500 in r0, r2, r4 and 2 more; 510 in r1, r3, r5 and 2 more."
    )


def test_runs_without_a_common_recipe_need_no_caution(pair, tmp_path):
    alone = original(tmp_path / "alone", suite="resnet20")
    fleet.edit_run(alone, lambda run: run["environment"].update(driver="1"))
    assert warned(*pair, alone) == []


def test_a_suite_that_was_edited_is_told_with_what_it_means(pair):
    request = {"suites": [{"name": "mlp", "digest": "bbb"}]}
    fleet.edit_run(pair[1], lambda run: run.update(request=request))
    assert only(warned(*pair)).startswith(
        "Different versions of mlp (hash of its file, and of a script's arguments): aaa in a; bbb "
        "in b."
    )
