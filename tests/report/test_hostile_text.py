"""Names and messages that want to be more than text, in every field of every file, through every
form of output.
"""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.compare.comparison import compare
from bench.compare.document import document as of_comparison
from bench.compare.page import show_comparison
from bench.report import document, load
from bench.results.store import Store
from bench.spec.text import UNSAFE
from tests.conftest import call
from tests.report import fleet
from tests.report.builders import GPU, RunBuilder, block, write_report

ROOT = Path(__file__).resolve().parents[2]
EVIL = "=cmd|'/C calc'!A0 \x1b[31m\x07\x9b2J\u202egpj.exe\u2066 <script>alert(1)</script> $x_{$"


def hostile(folder: Path, device: str = EVIL, peak_mib: int = 100) -> RunBuilder:
    """A run with hostile text in every word that may be any, written as the harness writes it."""
    run = RunBuilder(
        folder, suite=f"{EVIL} suite", device=replace(GPU, name=device, architecture=EVIL)
    )
    run.speed().memory("fp32", peak_mib).memory("amp-bf16", 60)
    run.train("fp32", [90.0, 90.5]).train("amp-bf16", [90.1, 90.4])
    run.lost("speed", "amp-fp16", "failed", f"{EVIL}\nsecond line")
    trial = run.trial("speed", ["fp32", "amp-bf16"], 128).id
    run.append(block(trial, discarded=EVIL))
    store = Store(folder)
    info = json.loads((folder / "run.json").read_text())
    info["environment"] |= {"host": EVIL, "os": EVIL, "torch": EVIL, "driver": EVIL}
    store.write_run({**info, "warnings": [EVIL], "started": EVIL, "version": EVIL})
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Two hostile runs of two devices, of which the second takes more memory."""
    folder = tmp_path_factory.mktemp("hostile")
    return [
        hostile(folder / "a\x1b[1m").folder,
        hostile(folder / "b\u202e", f"{EVIL} 2", 200).folder,
    ]


def harmless(text: str) -> bool:
    return UNSAFE.search(text) is None


def test_pages_and_terminal_hold_nothing_raw(runs, tmp_path):
    done = call("report", "--figures", "none", "--out", tmp_path / "out", *runs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert harmless(done.stdout)
    pages = [(tmp_path / "out" / name).read_text() for name in ("report.md", "report.html")]
    assert all(harmless(page) and "<script>alert" not in page for page in pages)


class Elements(HTMLParser):
    """The elements of a page that text could make, and attributes that would run it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] * (tag in ("img", "script", "iframe", "base")) + [
            name for name, _ in attrs if name[:2] == "on"
        ]


def test_every_word_of_every_file_is_text_on_every_page(tmp_path, monkeypatch):
    text = f"{EVIL}<img src=x onerror=alert(1)></script></title></svg>\"'>|*`"
    head = write_report([fleet.with_words(tmp_path / "run", text)], tmp_path / "out")
    page = head.with_name("report.html").read_text()
    assert Elements(page).found == ["script"]
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") > 50
    for name in ("report.md", "report.html"):
        text = head.with_name(name).read_text()
        assert harmless(text)
        assert "<img" not in text
        assert "<script>alert" not in text
    result = load(tmp_path / "run")
    assert any("<img" in cause for cause in result.blocks["discarded"].cat.categories)


def test_a_comparison_holds_nothing_raw(runs, capsys):
    result = compare(*runs)
    show_comparison(result)
    for text in (document.dumps(of_comparison(result)), capsys.readouterr().out):
        assert harmless(text)
        assert "gpj.exe" in text


def test_an_error_holds_nothing_raw(tmp_path):
    done = call("report", tmp_path / EVIL.replace("/", "_"), cwd=tmp_path)
    assert done.returncode == 2
    assert harmless(done.stderr)
    assert r"\x1b" in done.stderr
