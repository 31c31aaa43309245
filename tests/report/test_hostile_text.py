"""Names and messages that want to be more than text, in every field of every file, through every
form of output.
"""

import re

import pytest

from bench.compare.comparison import compare
from bench.compare.document import document as of_comparison
from bench.compare.page import show_comparison
from bench.report import document, load
from bench.spec.text import UNSAFE
from tests.conftest import call
from tests.report import fleet
from tests.report.builders import write_report
from tests.rows import edit_rows

EVIL = "=cmd|'/C calc'!A0 \x1b[31m\x07\x9b2J\u202egpj.exe\u2066 <script>alert(1)</script> $x_{$"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with hostile text in every word that may be any; the second takes more memory."""
    folder = tmp_path_factory.mktemp("hostile")
    old = fleet.with_words(folder / "a\x1b[1m", EVIL)
    new = fleet.with_words(folder / "b\u202e", EVIL)
    edit_rows(new, lambda row: row.update(peak_allocated_bytes="268435456"), "memory.csv")
    return [old, new]


def harmless(text):
    return UNSAFE.search(text) is None


def test_a_terminal_gets_nothing_raw(runs, tmp_path):
    done = call("report", "--figures=none", "--out=out", *runs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert harmless(done.stdout)


def test_every_word_of_every_file_is_text_on_every_page(tmp_path):
    text = f"{EVIL}<img src=x onerror=alert(1)></script></title></svg>\"' onload=x>|*`"
    run = fleet.with_words(tmp_path / "run", text)
    page = write_report([run], tmp_path / "out")
    html = page.read_text()
    assert len(re.findall("<(?:img|script|iframe|base)", html)) == 1  # the page's own script
    without_values = re.sub(r'"[^"<>]*"', "", html)
    assert not re.search(r"<[^<>]*\son\w+=", without_values)
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") > 50
    for name in ("report.md", "report.html"):
        text = page.with_name(name).read_text()
        assert harmless(text)
        assert "<img" not in text
        assert "<script>alert" not in text
    causes = load(run).blocks["discarded"]
    assert causes.str.contains("<img").any()


def test_a_comparison_holds_nothing_raw(runs, capsys):
    result = compare(*runs)
    show_comparison(result)
    printed = capsys.readouterr().out
    exported = document.dumps(of_comparison(result))
    for text in (printed, exported):
        assert harmless(text)
        assert "gpj.exe" in text


def test_an_error_holds_nothing_raw(tmp_path):
    name = EVIL.replace("/", "_")
    done = call("report", tmp_path / name, cwd=tmp_path)
    assert done.returncode == 2
    assert harmless(done.stderr)
    assert r"\x1b" in done.stderr
