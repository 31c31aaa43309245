"""The documents name files that exist, link to pages and headings that exist, and show commands
that parse.
"""

import re
import shlex
from pathlib import Path

import pytest

from bench.cli.parser import parse
from bench.planning import suite_registry
from bench.script import command as script

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "results" / "README.md",
    ROOT / "reports" / "README.md",
]
NAMED = re.compile(r"`((?:bench|docs|perf|suites|tests)/[\w/.-]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
COMMAND = re.compile(
    r"(?:^    |`|exec )(?:[A-Z_]+=\S+ )?python run_bench\.py ([^`\n]*)", re.MULTILINE
)


def each(pattern):
    cases = []
    for page in PAGES:
        for match in pattern.finditer(page.read_text()):
            text = match[0].strip()
            cases.append(pytest.param(page, match, id=f"{page.name}:{text[:60]}"))
    assert len(cases) > 10
    return cases


def slugs(page):
    names = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        words = re.sub(r"[^\w -]", "", heading).strip()
        names.add(words.lower().replace(" ", "-"))
    return names


@pytest.mark.parametrize(("page", "match"), each(NAMED))
def test_a_file_that_a_document_names_exists(page, match):
    assert (ROOT / match[1]).exists()


@pytest.mark.parametrize(("page", "match"), each(LINK))
def test_a_link_leads_to_a_page_and_a_heading_that_exist(page, match):
    target = page.parent / match[1] if match[1] else page
    assert target.exists()
    if match[2]:
        assert match[2][1:] in slugs(target)


@pytest.mark.parametrize(("page", "match"), each(COMMAND))
def test_an_example_is_a_command_and_that_of_a_source_has_a_suite_with_its_settings(
    page, match, tmp_path, monkeypatch
):
    if re.search(r"--help|[$*\\]", match[1]):
        pytest.skip("it prints help, or the shell must complete it")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(match[1].removesuffix("&"), comments=True)
    for word in words:
        kind, _, place = word.partition(":")
        path = Path(place)
        if kind == "folder":
            (path / "train" / "class").mkdir(parents=True)
        if kind == "text":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    options = parse(words)
    if words[0] == "script":
        script.COMMAND.run(options)
    if page.name == "sources.md" and "--suite" in words:
        (name,) = options.suites
        settings = dict(options.parameters)
        if ":" in name:
            for package in ("timm", "torchmetrics", "pycocotools"):
                pytest.importorskip(package, reason="pip install 'ampmeter[timm,detection]'")
        if "folder" in settings:
            Path(settings["folder"], "VOCdevkit", "VOC2007").mkdir(parents=True)
        suite_registry.refer(name, settings)
