"""Every technique is documented."""

import re
from pathlib import Path

from bench.spec.techniques import TECHNIQUES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "techniques.md").read_text()


def test_every_technique_has_its_row_in_the_documentation_in_the_canonical_order():
    rows = re.findall(r"^\| `([a-z0-9-]+)(?:=N)?` \| .+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == list(TECHNIQUES)
    assert {name for name, needs in rows if "together" in needs} == {
        one.name for one in TECHNIQUES.values() if one.devices == "several"
    }
