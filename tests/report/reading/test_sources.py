"""Images are compared by what they are: one fingerprint is one source, whatever its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.analysis.summary import summarise
from bench.report.reading.load import data_remarks, load
from tests.report import fleet
from tests.report.fleet import copy, original


def on_images(folder: Path, path: str, fingerprint: str | None) -> Path:
    fleet.edit_rows(folder, lambda row: row.update(data=path))
    kept = [] if fingerprint is None else [{"source": path, "fingerprint": fingerprint}]
    fleet.edit_run(folder, lambda run: run.update(data=kept))
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    first = original(tmp_path / "a")
    return first, copy(first, tmp_path / "b", device="Card B", architecture="Ada")


def names(*folders: Path) -> list[str]:
    return list(load(list(folders)).trials["data"].unique())


def test_the_same_images_under_two_paths_are_one_workload(pair):
    on_images(pair[0], "folder:/x/images", "f1")
    on_images(pair[1], "folder:/y/pictures", "f1")
    read = load(list(pair))
    for frame in (read.trials, read.epochs):
        assert list(frame["data"].unique()) == ["folder:/x/images"]
    assert summarise(read.trials)["workload"].unique().tolist() == ["mlp"]
    assert data_remarks(read.runs) == [
        "folder:/y/pictures of run b holds the same images as folder:/x/images, and is called that here."
    ]


def test_other_images_under_one_path_are_two(pair):
    on_images(pair[0], "folder:/images", "f1")
    on_images(pair[1], "folder:/images", "abcdef99")
    read = load(list(pair))
    assert names(*pair) == ["folder:/images", "folder:/images#abcdef"]
    assert "holds other images than" in data_remarks(read.runs)[0]


def test_without_fingerprints_paths_are_all_there_is(pair):
    on_images(pair[0], "folder:/x", None)
    on_images(pair[1], "folder:/y", None)
    assert names(*pair) == ["folder:/x", "folder:/y"]
    assert data_remarks(load(list(pair)).runs) == []


def test_blocks_keep_the_name_too(pair):
    from bench.results.records import Block
    from bench.results.store import Store

    for folder in pair:
        trial = load([folder]).trials.query("phase == 'speed'").iloc[0]["trial"]
        block = Block(trial=trial, precision="fp32", round=0, position=0, steps=1, time_ms=1.0, start_s=1.0)
        with Store(folder) as store:
            store.add_blocks([block])
    on_images(pair[0], "folder:/x", "f1")
    on_images(pair[1], "folder:/y", "f1")
    assert load(list(pair)).blocks["data"].astype(str).tolist() == ["folder:/x", "folder:/x"]
