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
A4 = {"width": 703, "height": 1032}
"""Pixels of a page of A4 within its margins of 12 mm."""
DIVIDED = """(all, height) => {
    const whole = part => getComputedStyle(part).breakInside === "avoid" &&
        part.getBoundingClientRect().height < height;
    return all.filter(part => part.checkVisibility() && !whole(part)).map(part => part.outerHTML);
}"""
"""Parts that a page break may divide."""
FILES = ("page_file", "fleet_file")
SMALLEST = 9
"""Height of the smallest words of figures, in pixels."""
PRECISIONS = ["tf32", "amp-fp16", "amp-bf16"]
"""Of the panels of a figure."""


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory, chromium):
    """A page with its figures."""
    folder = tmp_path_factory.mktemp("browser")
    run = write_run(folder / "run", SMALL)
    return write_report([run], folder / "out")


@pytest.fixture(scope="module")
def fleet_file(tmp_path_factory, chromium):
    """The page of five devices and three models."""
    folder = tmp_path_factory.mktemp("fleet")
    run = write_run(folder / "run")
    return write_report([run], folder / "out", figures="overview")


@pytest.fixture
def page(chromium, page_file):
    with opened(chromium, page_file) as page:
        yield page


def cells(page, column):
    """The texts of a column's cells, in the order shown."""
    return page.locator(f".line .{column}").all_inner_texts()


def test_it_opens_from_disk_filters_sorts_and_tells_what_is_behind_a_line(page):
    assert len(cells(page, "device")) == 4
    head = page.locator("th[data-column=speedup]")
    head.locator("button").click()
    first, second, *_ = cells(page, "speedup")
    assert first > second  # such as "2.84× ±3 %"
    head.locator("button").click()
    assert cells(page, "speedup")[:2] == [second, first]
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator(".line button").first.focus()
    page.keyboard.press("Enter")
    detail = page.locator(".detail:visible")
    # Two precisions are unsupported.
    assert detail.locator("tbody tr").count() == 4
    assert "as fast as fp32" in detail.locator("p").inner_text()
    page.keyboard.press("Enter")
    assert detail.count() == 0


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_fragment_keeps_the_view_and_nonsense_in_it_is_ignored(chromium, page_file, page):
    written = cells(page, "speedup")
    page.click("th[data-column=speedup] button")
    descending = cells(page, "speedup")
    assert descending != written
    _, _, fragment = page.url.partition("#")
    page.click("#reset")
    assert cells(page, "speedup") == written
    assert "#" not in page.url
    with opened(chromium, page_file, fragment=fragment) as again:
        assert cells(again, "speedup") == descending
    with opened(chromium, page_file, fragment="sort=x:y&theme=dark") as again:
        assert cells(again, "speedup") == written
        assert background(again) == "rgb(13, 17, 23)"
        again.click("#theme")
        assert background(again) == "rgb(255, 255, 255)"


def panels(page):
    """The panels that the figure of a model shows."""
    charts = "figure[data-name=speedup-vs-batch-resnet50] .panels > .chart:visible"
    return page.locator(f"{charts} .head").all_text_contents()


def test_figures_follow_the_filters(chromium, page_file, page):
    assert page.locator("figure").first.get_attribute("data-name") == "speedup-vs-batch-mlp"
    assert panels(page) == PRECISIONS
    page.uncheck("input[value=tf32]")
    assert panels(page) == PRECISIONS[1:]
    _, _, fragment = page.url.partition("#")
    page.click("#reset")
    assert panels(page) == PRECISIONS
    with opened(chromium, page_file, fragment=fragment) as again:
        assert panels(again) == PRECISIONS[1:]


def test_without_a_script_the_advised_view_and_all_figures_stand(chromium, page_file, page):
    advised = ".line .chip"
    with opened(chromium, page_file, java_script_enabled=False) as plain:
        assert not plain.locator("#controls").is_visible()
        shown = plain.locator(advised).all_inner_texts()
        assert len(shown) == 4
        assert shown == page.locator(advised).all_inner_texts()
        assert panels(plain) == PRECISIONS


def ends_before(word, other):
    """Return whether a word is left of another, or above it; a line is higher than its letters."""
    right = word["x"] + word["width"]
    bottom = word["y"] + 0.75 * word["height"]
    return right <= other["x"] + 1 or bottom <= other["y"]


@pytest.mark.parametrize("width", [375, 1024, 1440])
@pytest.mark.parametrize("file", FILES)
def test_no_two_words_of_a_figure_overlap(chromium, request, file, width):
    path = request.getfixturevalue(file)
    with opened(chromium, path, width=width) as page:
        charts = page.locator("figure[data-name^=speedup] .panels > .chart").all()
        assert charts
        for chart in charts:
            boxes = []
            for word in chart.locator("text:visible").all():
                boxes.append(word.bounding_box())
            for box, other in itertools.combinations(boxes, 2):
                assert ends_before(box, other) or ends_before(other, box)


@pytest.mark.parametrize("unfolded", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("file", FILES)
def test_nothing_is_cut_off_at_any_width(chromium, request, file, width, unfolded):
    path = request.getfixturevalue(file)
    with opened(chromium, path, width=width) as page:
        lines = page.locator(".line")
        if unfolded:
            page.evaluate(UNFOLD)
            assert page.locator(".detail:visible").count() == lines.count()
        assert page.evaluate(CUT_OFF, SMALLEST) == []
        for cell in lines.locator(".use, .speedup, .accuracy").all():
            assert cell.is_visible()


def test_a_fleet_is_printed_on_eight_pages_with_whole_figures(chromium, fleet_file):
    with opened(chromium, fleet_file) as page:
        pdf = page.pdf(format="A4")
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 8
        page.emulate_media(media="print")
        page.set_viewport_size(A4)
        parts = page.locator("figure, tr, .panels")
        assert page.locator("figure:visible").count()
        assert parts.evaluate_all(DIVIDED, A4["height"]) == []


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (375, "light"),
        (1440, "light"),
        (1440, "dark"),
    ],
)
def test_axe_finds_no_serious_violation(chromium, page_file, width, theme):
    source = axe()
    with opened(
        chromium,
        page_file,
        width=width,
        fragment=f"theme={theme}",
        bypass_csp=True,
    ) as page:
        page.evaluate(UNFOLD)
        page.evaluate(source)
        rules = page.evaluate("axe.run()")["violations"]
    for rule in rules:
        assert rule["impact"] not in ("serious", "critical"), rule


def test_the_page_of_a_fleet_is_small_and_has_every_advice_on_its_first_screen(
    chromium, fleet_file
):
    assert fleet_file.stat().st_size <= 450_000
    assert fleet_file.read_text().count("unsupported") < 20
    head = fleet_file.with_name("report.md").read_text()
    assert len(head.splitlines()) < 150
    parts = re.findall(r"^(\| model|!\[|\| device|\*\*Not)", head, re.MULTILINE)
    assert [*dict.fromkeys(parts)] == ["| model", "![", "| device", "**Not"]
    with opened(chromium, fleet_file) as page:
        lines = page.locator(".line").all()
        assert len(lines) == 15
        for line in lines:
            box = line.bounding_box()
            assert box["y"] + box["height"] <= 900
        architectures = page.locator(".line .device .soft").all_inner_texts()
        assert architectures == ["Pascal", "Volta", "Turing", "Ampere", "Hopper"] * 3
