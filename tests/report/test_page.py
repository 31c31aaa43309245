"""The report as its reader gets it: markdown, HTML, plots, and the files of its folder."""

import base64
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report import page, render
from bench.report.format import change, times
from bench.report.page import FILES
from tests.report import fleet
from tests.report.builders import RunBuilder, text_of, write_report


def written(run, figures="none"):
    """Return the words of report.html, its HTML and its folder."""
    page = write_report([run.folder], run.folder.with_name("out"), figures=figures)
    return text_of(page), page.read_text(), page.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with something for every part of a report, its words, its HTML and their folder."""
    run = RunBuilder(tmp_path_factory.mktemp("whole") / "run")
    for batch in (128, 512, 513):
        run.speed(batch=batch).memory("fp32", 100, batch=batch).memory("amp-bf16", 60, batch=batch)
    run.train("fp32", [90.0, 90.5]).train("amp-bf16", [90.1, 90.4])
    return run, *written(run, figures="overview")


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """The markdown, the HTML and the folder of a run that was warned and went wrong."""
    run = RunBuilder(tmp_path_factory.mktemp("troubled") / "run")
    traceback = "File torch/nn, line 1 / " * 50
    details = {
        "fp16": "bad|detail\n| --- | [x](javascript:1) `code`",
        "bf16": f"device 2 of 2 (CPU): ValueError: bad | {traceback}raise ValueError(bad)",
    }
    run.speed().lost("speed", "amp-fp16", "oom", "tried to allocate 2 GiB")
    for name, detail in details.items():
        run.lost("speed", name, "failed", detail)
    fleet.edit_run(run.folder, lambda info: info.update(warnings=["The GPU is <shared>."]))
    return written(run)


def test_every_line_of_a_markdown_table_has_as_many_cells_and_a_word_makes_no_link(troubled):
    text = (troubled[2] / "report.md").read_text()
    assert not re.search(r"(?<!\\)\]\(javascript", text)
    lines = re.findall(r"^\|.*", text, flags=re.MULTILINE)
    assert len(lines) >= 3
    assert re.fullmatch(r"\|( -+:? \|)+", lines[1])
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == lines[1].count("|")


def test_what_did_not_fit_stays_in_the_table_as_its_word_and_in_the_notes_with_its_reason(troubled):
    text, _, notes = troubled[0].partition("Notes")
    assert re.search(r"\| amp-fp16 \| 128 \|( oom \|| – \|)+", text)
    assert "tried to allocate 2 GiB" in notes
    raised = r"device 2 of 2 \(CPU\): ValueError: bad .*raise ValueError\(bad\) \|\n"
    assert re.search(raised, notes)


def test_unknown_is_a_dash_and_never_zero_or_nan(troubled):
    text, html, _ = troubled
    header, _fp32, line = re.findall(r"^\| (?:precision|fp32|amp-bf16) \|.*", text, re.M)[:3]
    place = header.split(" | ").index("peak memory (MiB, vs fp32)")
    assert line.split(" | ")[place] == "–"
    assert not re.search(r"\bnan\b|\bNone\b", text + html)


def test_what_a_run_warned_of_is_told_after_the_verdict(troubled):
    _, html, folder = troubled
    assert "- The GPU is &lt;shared&gt;.\n" in (folder / "report.md").read_text()
    assert "<li><bdi>The GPU is &lt;shared&gt;.</bdi></li>" in html


def test_a_long_table_is_folded_on_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "LONGEST", 1)
    _, html, _ = written(RunBuilder(tmp_path / "run").speed())
    _, _, folded = html.partition("<details><summary>How it was measured (2 rows)</summary>")
    assert "How it was measured</caption>" in folded.partition("</details>")[0]


def test_the_page_needs_nothing_else_and_no_id_is_there_twice(whole):
    html = whole[2]
    ids = re.findall(r'\bid="(.*?)"', html)
    assert len(ids) == len(set(ids)) > 0
    links = re.findall(r'\b(?:src|href)="(.*?)"', html) + re.findall(r"url\((.*?)\)", html)
    assert {*links} <= {"summary.csv", *(f"#{name}" for name in ids)}


@pytest.mark.slow
def test_a_fresh_process_writes_the_same_to_the_byte_imports_its_libraries_late_and_torch_never(
    whole, tmp_path
):
    run, _, _, first = whole
    code = (
        "import sys, pathlib, bench.report as r\n"
        "assert not {'pandas', 'matplotlib', 'jinja2', 'scipy', 'torch'} & set(sys.modules)\n"
        f"r.report([pathlib.Path({str(run.folder)!r})], pathlib.Path({str(tmp_path)!r}))\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    assert len(files(first)) == 10
    assert files(tmp_path) == files(first)
    for name in files(first):
        assert (first / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_line_has_the_summarys_figures_and_unfolds_to_every_batch_size(whole):
    run, _, html, _ = whole
    answer = run.answer()
    advised = answer.arm
    speedup = times(advised["speedup"], advised["speedup_low"], advised["speedup_high"])
    line = re.search(r'<tr class="line".*?</tr>', html, re.DOTALL)[0]
    assert f"<strong>{speedup}</strong>" in line
    assert f"<span>{change(advised['memory_change_ratio'])}</span>" in line
    assert f'data-sort="{advised["speedup"]}"' in line
    detail = re.search(r'<tr class="detail" hidden>.*?</table>', html, re.DOTALL)[0]
    assert answer.evidence in detail
    rows = re.findall(r"<tr><td><bdi>(\S+?)(?: .*?)?</bdi></td><td>(\d+)", detail)
    for batch in ("128", "512", "513"):
        assert [name for name, size in rows if size == batch] == ["fp32", "amp-bf16"]


def test_only_inline_parts_with_their_hash_are_allowed(whole):
    html = whole[2]
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
    one = RunBuilder(tmp_path / "one").speed().speed(batch=256).folder
    two = fleet.copy(one, tmp_path / "two", device="Card", architecture="Volta", host="there")
    return [one, two]


def files(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_a_report_written_again_leaves_nothing_of_the_one_before(pair, tmp_path):
    out = tmp_path / "out"
    head = write_report(pair, out).with_name("report.md").read_text()
    shown = re.findall(r"^!\[.*?\]\((.*?)\.svg\)$", head, flags=re.MULTILINE)
    assert "speedup-vs-batch-mlp" in shown
    for name in shown:
        assert (out / f"{name}.svg").read_text().rstrip().endswith("</svg>")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    write_report(pair[:1], tmp_path / "fresh")
    write_report(pair[:1], out)
    assert files(out) == files(tmp_path / "fresh")
    write_report(pair[:1], out, figures="none")
    assert files(out) == REPORT


@pytest.mark.slow
def test_a_report_into_a_runs_own_folder_leaves_what_no_report_wrote(pair, tmp_path):
    run, stray = pair[0], tmp_path / "kept.svg"
    for path in (run / "mine.svg", run / "mine.csv", run / "notes.txt", stray):
        path.write_text("mine")
    there = files(run)
    write_report(pair[:1], run)
    with (run / "report.md").open("a") as head:
        head.write("\n![up](../kept.svg)\nSee blocks.csv, mine.csv and mine.svg.\n")
    write_report(pair[:1], run, figures="none")
    assert files(run) == there | REPORT
    assert stray.exists()


def test_an_interrupted_report_leaves_the_one_before(pair, tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_report(pair[:1], out, figures="none")
    before = {name: (out / name).read_bytes() for name in files(out)}

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "render", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(pair, out)
    assert {name: (out / name).read_bytes() for name in files(out)} == before
