"""The report as its reader gets it: markdown, HTML, plots, and the files of its folder."""

import base64
import hashlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from bench.report import page, render, report
from bench.report.format import change, times
from bench.report.page import FILES
from tests.report import fleet
from tests.report.builders import RunBuilder, text_of, write_report


def written(run, figures="none"):
    """Report a run next to its folder."""
    out = run.folder.with_name("out")
    return write_report([run.folder], out, figures=figures)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with something for every part of a report."""
    folder = tmp_path_factory.mktemp("whole")
    run = RunBuilder(folder / "run")
    for batch in (128, 512, 513):
        run.speed(batch=batch)
        run.memory("fp32", 100, batch=batch)
        run.memory("amp-bf16", 60, batch=batch)
    run.train("fp32", [90.0, 90.5])
    return run.train("amp-bf16", [90.1, 90.4])


@pytest.fixture(scope="module")
def whole_page(whole):
    return written(whole, figures="overview")


@pytest.fixture(scope="module")
def html(whole_page):
    return whole_page.read_text()


def test_advice_that_longer_measuring_may_change_is_marked_on_the_page_and_the_terminal(tmp_path):
    run = RunBuilder(tmp_path / "run").together({"amp-bf16": [0.9, 1.3]})
    result = report([run.folder], tmp_path / "out", figures="none")
    assert "fp32 (undecided)" in render.terminal(result, tmp_path)
    (cell,) = re.findall('<td class="use">(.*?)</td>', written(run).read_text())
    assert "undecided" in cell


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """The page of a run that was warned and went wrong."""
    folder = tmp_path_factory.mktemp("troubled")
    run = RunBuilder(folder / "run")
    traceback = "File torch/nn, line 1 / " * 50
    raised = f"device 2 of 2 (CPU): ValueError: bad | {traceback}raise ValueError(bad)"
    run.speed()
    run.lost("speed", "amp-fp16", "oom", "tried to allocate 2 GiB")
    run.lost("speed", "fp16", "failed", "bad|detail\n| --- | [x](javascript:1) `code`")
    run.lost("speed", "bf16", "failed", raised)
    fleet.edit_run(run.folder, lambda info: info.update(warnings=["The GPU is <shared>."]))
    return written(run)


def test_every_line_of_a_markdown_table_has_as_many_cells_and_a_word_makes_no_link(troubled):
    text = troubled.with_name("report.md").read_text()
    assert not re.search(r"(?<!\\)\]\(javascript", text)
    _, rule, *lines = re.findall(r"^\|.*", text, flags=re.MULTILINE)
    assert re.fullmatch(r"\|( -+:? \|)+", rule)
    assert lines
    for line in lines:
        bars = re.findall(r"(?<!\\)\|", line)
        assert len(bars) == rule.count("|")


def test_what_did_not_fit_stays_in_the_table_as_its_word_and_in_the_notes_with_its_reason(troubled):
    text, _, notes = text_of(troubled).partition("Notes")
    assert re.search(r"\| amp-fp16 \| 128 \|( oom \|| – \|)+", text)
    assert "tried to allocate 2 GiB" in notes
    raised = r"device 2 of 2 \(CPU\): ValueError: bad .*raise ValueError\(bad\) \|\n"
    assert re.search(raised, notes)


def test_unknown_is_a_dash_and_never_zero_or_nan(troubled):
    text = text_of(troubled)
    header, _, line, *_ = re.findall(r"^\| (?:precision|fp32|amp-bf16) \|.*", text, re.M)
    place = header.split(" | ").index("peak memory (MiB, vs fp32)")
    assert line.split(" | ")[place] == "–"
    for words in (text, troubled.read_text()):
        assert not re.search(r"\bnan\b|\bNone\b", words)


def test_what_a_run_warned_of_is_told_after_the_verdict(troubled):
    markdown = troubled.with_name("report.md").read_text()
    assert "- The GPU is &lt;shared&gt;.\n" in markdown
    assert "<li><bdi>The GPU is &lt;shared&gt;.</bdi></li>" in troubled.read_text()


def test_a_long_table_is_folded_on_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "LONGEST", 1)
    run = RunBuilder(tmp_path / "run").speed()
    html = written(run).read_text()
    _, _, rest = html.partition("<details><summary>How it was measured (2 rows)</summary>")
    folded, _, _ = rest.partition("</details>")
    assert "How it was measured</caption>" in folded


def test_the_page_needs_nothing_else_and_no_id_is_there_twice(html):
    ids = Counter(re.findall(r'\bid="(.*?)"', html))
    assert set(ids.values()) == {1}
    links = re.findall(r'\b(?:src|href)="(.*?)"|url\((.*?)\)', html)
    assert links
    for attribute, of_style in links:
        link = attribute or of_style
        assert link == "summary.csv" or link.removeprefix("#") in ids


@pytest.mark.slow
def test_a_fresh_process_writes_the_same_to_the_byte_imports_its_libraries_late_and_torch_never(
    whole, whole_page, tmp_path
):
    code = (
        "import sys, pathlib, bench.report as r\n"
        "assert not {'pandas', 'matplotlib', 'jinja2', 'scipy', 'torch'} & set(sys.modules)\n"
        "r.report([pathlib.Path(sys.argv[1])], pathlib.Path(sys.argv[2]))\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, whole.folder, tmp_path]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    files = contents(tmp_path)
    assert len(files) == 10
    assert files == contents(whole_page.parent)


def test_a_line_has_the_summarys_figures_and_unfolds_to_every_batch_size(whole, html):
    answer = whole.answer()
    advised = answer.arm
    speedup = times(advised["speedup"], advised["speedup_low"], advised["speedup_high"])
    memory = change(advised["memory_change_ratio"])
    _, _, lines = html.partition('<tr class="line"')
    line, _, lines = lines.partition('<tr class="detail" hidden>')
    assert f"<strong>{speedup}</strong>" in line
    assert f'data-sort="{advised["speedup"]}"' in line
    assert f"<span>{memory}</span>" in line
    detail, _, _ = lines.partition("</table>")
    assert answer.evidence in detail
    rows = re.findall(r"<tr><td><bdi>(?:fp32|amp-bf16)\b.*?</bdi></td><td>(\d+)", detail)
    assert Counter(rows) == {"128": 2, "512": 2, "513": 2}


def test_only_inline_parts_with_their_hash_are_allowed(html):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    hashes = []
    for part in re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", html, re.DOTALL):
        digest = hashlib.sha384(part.encode()).digest()
        hashes.append(base64.b64encode(digest).decode())
    assert re.findall(r"'sha384-(.*?)'", policy) == hashes
    assert not re.search(r'\sstyle="|\son\w+="', html)


REPORT = {"report.md", "report.html", FILES, "summary.csv"}


@pytest.fixture
def pair(tmp_path):
    """Two runs of one recipe on two devices."""
    run = RunBuilder(tmp_path / "one")
    run.speed()
    run.speed(batch=256)
    other = tmp_path / "two"
    fleet.copy(run.folder, other, device="Card", architecture="Volta", host="there")
    return [run.folder, other]


def contents(folder):
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_report_written_again_leaves_nothing_of_the_one_before(pair, tmp_path):
    out = tmp_path / "out"
    write_report(pair, out)
    head = (out / "report.md").read_text()
    shown = re.findall(r"^!\[.*?\]\((.*?)\.svg\)$", head, flags=re.MULTILINE)
    assert "speedup-vs-batch-mlp" in shown
    files = contents(out)
    for name in shown:
        assert files[f"{name}.svg"].rstrip().endswith(b"</svg>")
        assert files[f"{name}.png"].startswith(b"\x89PNG")
    write_report(pair[:1], tmp_path / "fresh")
    write_report(pair[:1], out)
    assert contents(out) == contents(tmp_path / "fresh")
    write_report(pair[:1], out, figures="none")
    assert contents(out).keys() == REPORT


@pytest.mark.slow
def test_a_report_into_a_runs_own_folder_leaves_what_no_report_wrote(pair, tmp_path):
    run = pair[0]
    stray = tmp_path / "kept.svg"
    stray.write_text("mine")
    for name in ("mine.svg", "mine.csv", "notes.txt"):
        (run / name).write_text("mine")
    files = {*contents(run)}
    write_report([run], run)
    with (run / "report.md").open("a") as head:
        head.write("\n![up](../kept.svg)\nSee blocks.csv, mine.csv and mine.svg.\n")
    write_report([run], run, figures="none")
    assert contents(run).keys() == files | REPORT
    assert stray.exists()


def test_an_interrupted_report_leaves_the_one_before(pair, tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_report(pair[:1], out, figures="none")
    before = contents(out)
    interrupted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(page, "render", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(pair, out)
    assert contents(out) == before
