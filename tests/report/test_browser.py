"""The page in a browser: it opens from disk, its controls work, and nothing is cut off."""

import itertools
import re

import pytest

from perf.synthetic_fleet import Shape, write_run
from tests.report.browser import CUT_OFF, UNFOLD, WIDTHS, axe, browser, opened
from tests.report.builders import write_report

pytestmark = pytest.mark.slow

SMALL = Shape(
    gpus=["P100", "A100"],
    models=["resnet50", "mlp"],
    batch_sizes=(64, 128),
    processes=3,
    seeds=5,
    epochs=2,
)
A4_PX = 703, 1032
"""Pixels of a page of A4 within its margins of 12 mm."""
FILES = ("page_file", "fleet_file")
SMALLEST = 9
"""Height of the smallest words of figures, in pixels."""


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory, chromium):
    """A page with its figures."""
    folder = tmp_path_factory.mktemp("browser")
    return write_report([write_run(folder / "run", SMALL)], folder / "out")


@pytest.fixture(scope="module")
def fleet_file(tmp_path_factory, chromium):
    """The page of five devices and three models."""
    folder = tmp_path_factory.mktemp("fleet")
    return write_report([write_run(folder / "run")], folder / "out", figures="overview")


def cells(page, column):
    """The texts of a column's cells, in the order shown."""
    heads = page.locator("#answers > thead th").all()
    place = [head.get_attribute("data-column") for head in heads].index(column)
    return page.locator(f".line:visible > :nth-child({place + 1})").all_inner_texts()


def test_it_opens_from_disk_filters_sorts_and_tells_what_is_behind_a_line(chromium, page_file):
    with opened(chromium, page_file) as page:
        assert len(cells(page, "device")) == 4
        page.click("th[data-column=speedup] button")
        first, second = cells(page, "speedup")[:2]
        assert float(first.partition("×")[0]) > float(second.partition("×")[0])
        page.click("th[data-column=speedup] button")
        assert cells(page, "speedup")[:2] == [second, first]
        assert page.get_attribute("th[data-column=speedup]", "aria-sort") == "ascending"
        page.locator(".line:visible button").first.focus()
        page.keyboard.press("Enter")
        # Two precisions are unsupported.
        assert page.locator(".detail:visible tbody tr").count() == 4
        assert "as fast as fp32" in page.inner_text(".detail:visible p")
        page.keyboard.press("Enter")
        assert page.locator(".detail:visible").count() == 0


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_fragment_keeps_the_view_and_nonsense_in_it_is_ignored(chromium, page_file):
    with opened(chromium, page_file) as page:
        written = cells(page, "speedup")
        page.click("th[data-column=memory] button")
        _, _, fragment = page.url.partition("#")
        by_memory = cells(page, "memory")
        page.click("#reset")
        assert cells(page, "speedup") == written
        assert "#" not in page.url
    with opened(chromium, page_file, fragment=f"#{fragment}") as page:
        assert cells(page, "memory") == by_memory
    with opened(chromium, page_file, fragment="#sort=x:y&theme=dark") as page:
        assert cells(page, "speedup") == written
        assert background(page) == "rgb(13, 17, 23)"
        page.click("#theme")
        assert background(page) == "rgb(255, 255, 255)"


def shown(page):
    """The panels that the figure of a model shows."""
    charts = "figure[data-name=speedup-vs-batch-resnet50] .panels > .chart:visible"
    return page.locator(f"{charts} .head").all_text_contents()


def test_figures_follow_the_filters(chromium, page_file):
    everything = ["tf32", "amp-fp16", "amp-bf16"]
    with opened(chromium, page_file) as page:
        assert page.locator("figure").first.get_attribute("data-name") == "speedup-vs-batch-mlp"
        assert shown(page) == everything
        page.uncheck("input[value=tf32]")
        assert shown(page) == ["amp-fp16", "amp-bf16"]
        _, _, fragment = page.url.partition("#")
        page.click("#reset")
        assert shown(page) == everything
    with opened(chromium, page_file, fragment=f"#{fragment}") as page:
        assert shown(page) == ["amp-fp16", "amp-bf16"]


def test_without_a_script_the_advised_view_and_all_figures_stand(chromium, page_file):
    with opened(chromium, page_file) as page:
        scripted = [text.split()[0] for text in cells(page, "use")]
    with opened(chromium, page_file, java_script_enabled=False) as page:
        assert not page.locator("#controls").is_visible()
        assert page.locator(".line .chip").all_inner_texts() == scripted
        assert shown(page) == ["tf32", "amp-fp16", "amp-bf16"]


def overlap(one, other):
    """Return whether two words do, of which a line is higher than its letters."""
    spare = 0.25 * one["height"]
    is_beside = one["x"] + one["width"] <= other["x"] + 1
    is_above = one["y"] + one["height"] <= other["y"] + spare
    return not (is_beside or is_above)


@pytest.mark.parametrize("width", [375, 1024, 1440])
@pytest.mark.parametrize("file", FILES)
def test_no_two_words_of_a_figure_overlap(chromium, request, file, width):
    with opened(chromium, request.getfixturevalue(file), width=width) as page:
        panels = page.locator("figure[data-name^=speedup] .panels > .chart").all()
        assert panels
        for panel in panels:
            boxes = [word.bounding_box() for word in panel.locator("text:visible").all()]
            for one, other in itertools.combinations(boxes, 2):
                assert not (overlap(one, other) and overlap(other, one))


@pytest.mark.parametrize("unfolded", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("file", FILES)
def test_nothing_is_cut_off_at_any_width(chromium, request, file, width, unfolded):
    with opened(chromium, request.getfixturevalue(file), width=width) as page:
        if unfolded:
            page.evaluate(UNFOLD)
            assert page.locator(".detail:visible").count() == page.locator(".line").count()
        assert page.evaluate(CUT_OFF, SMALLEST) == []
        for cell in page.locator(".line .use, .line .speedup, .line .accuracy").all():
            assert cell.is_visible()


def test_a_fleet_is_printed_on_eight_pages_with_whole_figures(chromium, fleet_file):
    with opened(chromium, fleet_file) as page:
        assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= 8
        page.emulate_media(media="print")
        page.set_viewport_size({"width": A4_PX[0], "height": A4_PX[1]})
        whole = page.locator("figure, tr, .panels").evaluate_all(
            "all => all.filter(one => one.checkVisibility()).map(one => "
            "[getComputedStyle(one).breakInside, one.getBoundingClientRect().height])"
        )
        assert {rule for rule, _ in whole} == {"avoid"}
        assert 0 < max(height for _, height in whole) < A4_PX[1]


@pytest.mark.parametrize(("width", "theme"), [(375, "light"), (1440, "light"), (1440, "dark")])
def test_axe_finds_no_serious_violation(chromium, page_file, width, theme):
    source = axe()
    with opened(
        chromium, page_file, width=width, fragment=f"#theme={theme}", bypass_csp=True
    ) as page:
        page.locator(".line button").first.click()
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        page.evaluate(source)
        rules = page.evaluate("axe.run()")["violations"]
    for rule in rules:
        assert rule["impact"] not in ("serious", "critical"), (rule["id"], rule["nodes"][0]["html"])


def test_the_page_of_a_fleet_is_small_and_has_every_advice_on_its_first_screen(
    chromium, fleet_file
):
    assert fleet_file.stat().st_size <= 450_000
    head = fleet_file.with_name("report.md").read_text().splitlines()
    assert len(head) < 150
    text = "\n".join(head)
    places = [text.index(f"\n{mark}") for mark in ("| model", "![", "| device", "**Not")]
    assert places == sorted(places)
    assert fleet_file.read_text().count("unsupported") < 20
    with opened(chromium, fleet_file) as page:
        boxes = [line.bounding_box() for line in page.locator(".line").all()]
        assert len(boxes) == 15
        assert max(box["y"] + box["height"] for box in boxes) <= 900
        ladder = [name.split()[-1] for name in cells(page, "device")]
        assert ladder == ["Pascal", "Volta", "Turing", "Ampere", "Hopper"] * 3
