"""run.json is refused in a sentence that names the field, whatever stands in it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bench.results.store import read_run
from bench.spec.errors import UsageError

MEASURED = Path(__file__).parents[2] / "results"
PARITY = "resnet20-cpu-epyc-parity"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(MEASURED / PARITY / "run.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["resnet20-cpu-epyc", PARITY])
def test_what_runs_wrote_is_read(name):
    assert read_run(MEASURED / name)["run"] == name


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("warnings",), "none", 'warnings must be a list, not "none"'),
        (("started",), 5, "started must be a text, not 5"),
        (("environment",), [], "environment must be an object, not []"),
        (("environment", "devices"), {}, "environment.devices must be a list, not {}"),
        (("environment", "devices", 0), "cpu", 'environment.devices[0] must be an object, not "cpu"'),
        (("environment", "devices", 0, "cores"), "4", 'environment.devices[0].cores must be a whole number, not "4"'),
        (("environment", "devices", 0, "cores"), True, "environment.devices[0].cores must be a whole number, not true"),
        (("environment", "devices", 0, "fp32_gflops"), 10**400, "environment.devices[0].fp32_gflops must be a number"),
        (("environment", "devices", 0, "kind"), "toaster", "environment.devices[0].kind must be one of cuda, cpu"),
        (("environment", "devices", 0, "unsupported", "tf32"), 1, "environment.devices[0].unsupported.tf32 must be"),
        (("request", "argv"), "--suite mlp", "request.argv must be a list"),
        (("request", "argv", 0), None, "request.argv[0] must be a text, not null"),
        (("request", "suites", 0), {}, "request.suites[0] must be an object with name"),
        (("request", "protocol", "replicates"), "three", "request.protocol.replicates must be a whole number"),
        (("planned", 0, "seed"), 1.5, "planned[0].seed must be a whole number, not 1.5"),
        (("planned", 0), {"trial": "t"}, "planned[0] must be an object with cell"),
        (("data", 0, "fingerprint"), ["a"], "data[0].fingerprint must be a text"),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(folder, where, value, message):
    run = json.loads((folder / "run.json").read_text())
    part = run
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    (folder / "run.json").write_text(json.dumps(run))
    with pytest.raises(UsageError, match=re.escape(message)):
        read_run(folder)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe{}", "cannot be read"),
        (b"[]", "it holds a list, not an object"),
        (b'{"schema": 5, "started": NaN}', "NaN is no number of a run"),
        (b'{"schema": 5, "data": ' + b"[" * 100_000, "nested too deep"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_what_is_no_json_of_a_run_is_refused(tmp_path, data, message):
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_run(tmp_path)


def test_parts_that_were_not_written_may_be_missing(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": 5, "environment": {"torch": "2.15"}, "new": [1, {}]}')
    assert read_run(tmp_path)["new"] == [1, {}]
