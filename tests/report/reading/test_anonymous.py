"""A report that is shared tells nobody who measured, or where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.report.exports import document, formats
from bench.report.reading.anonymous import anonymous
from bench.report.reading.load import load
from tests.conftest import call
from tests.report import fleet
from tests.report.builders import GPU, RunBuilder, block

UUID = "GPU-5a1f0c3e-11d2-4b4e-9c55-0123456789ab"
SECRETS = (
    "alice",
    "secretlab",
    "gpubox7",
    "bob",
    "trainer.py",
    "5a1f0c3e",
    "10.1.2.3",
    "4242",
    "private",
    "ada lovelace",
)
DETAIL = (
    "RuntimeError: cannot open '/home/alice/private data/x.pt' on gpubox7\n"
    'File "/srv/secretlab/trainer.py", line 3, in bob@secretlab.org\n'
    f"see ~alice/log, ./private/x and secretlab/models/net.py; {UUID} at 10.1.2.3:29400"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    """Two runs of one recipe whose files hold names, paths and ids wherever they may."""
    folder = tmp_path_factory.mktemp("home")
    paths = []
    for number, name in enumerate(("alice-h100", "secretlab_2")):
        parameters = (("weights", "/home/alice/private/w.pt"),)
        device = replace(GPU, uuid=UUID, name=f"Card {number}")
        run = RunBuilder(folder / name, device=device, parameters=parameters)
        run.speed().memory("fp32", 100).memory("amp-bf16", 60).train("fp32", [90.0]).train("amp-bf16", [90.1])
        run.lost("speed", "amp-fp16", "failed", DETAIL)
        cause = "another process used the GPU (pid 4242, 90 % of its time)"
        run.append(block(run.trial("speed", ["fp32", "amp-bf16"], 128).id, discarded=cause))
        fleet.edit_rows(run.folder, lambda row: row.update(data="folder:/home/alice/private/images"))
        fleet.edit_run(run.folder, identify)
        paths.append(run.folder)
    return paths


@pytest.fixture(scope="module")
def plain(folders) -> dict:
    """The document of the runs as they are."""
    return document.report(load(folders))


@pytest.fixture(scope="module")
def runs(folders):
    return anonymous(load(folders))


@pytest.fixture(scope="module")
def hidden(runs) -> dict:
    """The same without what identifies."""
    return document.report(runs)


def identify(info: dict) -> None:
    info["environment"] |= {"host": "gpubox7", "removed_variables": ["X=/home/alice/x"]}
    argv = ["--suite", "/home/alice/private/mlp.py", "--data", "folder:/home/alice/private/images"]
    argv += ["--out=results/alice-h100", "--weights", "/home/alice/private/w.pt", "--on", "ray://gpubox7:10001"]
    info["request"] |= {"argv": argv, "out": "results/alice-h100", "data_dir": "/home/alice/private/cache"}
    info["request"]["suites"] = [{"name": "mlp", "file": "/home/alice/private/mlp.py", "parameters": []}]
    info["data"] = [{"source": "folder:/home/alice/private/images", "directory": "/home/alice/x", "fingerprint": "f"}]
    info["warnings"] = ["GPU 0 is in use by bob (ada lovelace, pid 4242, 3.0 GiB). GPU 1 is in use by bob (x, pid 1)."]


def identifying(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text.lower()]


def test_the_runs_as_they_are_would_tell(plain):
    assert identifying(document.dumps(plain)) == list(SECRETS)


def test_json_and_exports_do_not_tell(runs, hidden):
    assert identifying(document.dumps(hidden)) == []
    assert identifying(formats.github_action_benchmark(runs)) == []


def test_pages_and_tables_do_not_tell(folders, tmp_path):
    done = call("report", "--anonymise", "--figures", "none", "--out", tmp_path / "out", *folders, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert {".md", ".html", ".csv"} <= {path.suffix for path in files}
    for path in files:
        assert identifying(path.name + path.read_text()) == [], path.name
    assert identifying(done.stdout.replace(str(tmp_path), "")) == []


def test_the_figures_are_those_of_the_report_and_the_runs_are_still_told_apart(plain, hidden):
    assert [row["speedup"] for row in hidden["results"]] == [row["speedup"] for row in plain["results"]]
    assert [row["peak_memory_bytes"] for row in hidden["results"]] == [
        row["peak_memory_bytes"] for row in plain["results"]
    ]
    assert {row["run"] for row in hidden["results"]} == {"no. 1", "no. 2"}
    assert {row["data"] for row in hidden["results"]} == {"folder:1"}
    assert {run["environment"]["host"] for run in hidden["runs"]} == {"host 1"}
    names = [{(row["run"], row["trial"], row["precision"]) for row in report["trials"]} for report in (plain, hidden)]
    assert len(names[0]) == len(names[1])


def test_a_text_of_ones_own_is_a_number_wherever_it_is_named(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [None], test_loss=3.0)
    run.lost("train", "amp-bf16", "failed", "text:/home/alice/diary.txt cannot be read")
    fleet.edit_rows(run.folder, lambda row: row.update(data="text:/home/alice/diary.txt"))
    fleet.edit_run(run.folder, lambda info: info["request"].update(argv=["--data", "text:diary.txt"]))
    result = anonymous(load([run.folder]))
    assert set(result.trials["data"]) == {"text:1"}
    assert result.runs[0].info["request"]["argv"] == ["--data", "text:PATH"]
    assert "diary" not in " ".join(result.trials["detail"])


def test_what_identifies_nobody_stays(tmp_path):
    run = RunBuilder(tmp_path / "run").memory("fp32", 100)
    run.lost("speed", "fp32", "failed", "512 samples/s of 1/2, CUDA error: 700 (see docs) and/or x")
    (detail,) = {text for text in anonymous(load([run.folder])).trials["detail"] if text}
    assert detail == "512 samples/s of 1/2, CUDA error: 700 (see docs) and/or x"


def test_a_folder_named_after_the_runs_would_tell(tmp_path):
    done = call("report", "--anonymise", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "--out" in done.stderr
