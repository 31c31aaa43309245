"""run.json is refused in a sentence that names the field, whatever stands in it."""

import json
import re
from pathlib import Path

import pytest

from bench.results.run_json import FORMAT, read_run
from bench.spec.errors import UsageError

MEASURED = Path(__file__).parents[2] / "results"
PARITY = "resnet20-cpu-epyc-parity"


@pytest.mark.parametrize("name", ["resnet20-cpu-epyc", PARITY])
def test_what_runs_wrote_is_read(name):
    assert read_run(MEASURED / name)["run"] == name


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("warnings",), "none", "Expected `array`, got `str` - at `$.warnings`"),
        (("environment",), None, "at `$.environment`"),
        (
            ("environment", "devices", 0, "kind"),
            "toaster",
            "Invalid enum value 'toaster' - at `$.environment.devices",
        ),
        (("request", "suites", 0), {}, "missing required field `name` - at `$.request.suites[0]`"),
        (("planned", 0, "seed"), 1.5, "Expected `int`, got `float` - at `$.planned[0].seed`"),
        (("data", 0, "fingerprint"), ["a"], "at `$.data[0].fingerprint`"),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(
    tmp_path, where, value, message
):
    run = json.loads((MEASURED / PARITY / "run.json").read_text())
    part = run
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(UsageError, match=re.escape(message)):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe{}", "cannot be read"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "not of format"),
        (b'{"format": %d}' % (FORMAT - 1), "the version of ampmeter that wrote it"),
        (b"", "cannot be read"),
    ],
)
def test_what_is_no_json_of_a_run_is_refused(tmp_path, data, message):
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_run(tmp_path)
