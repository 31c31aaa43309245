"""Write the golden files of all cases, or of those that are named (see tests/golden)."""

import argparse
import json
import shutil
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from tests.golden.cases import CASES, runs_of
from tests.golden.figures import FOLDER, PUBLISHED, Figures, figures, published, rounded, write_report
from tests.report.browser import browser, opened

WIDTHS = (1440, 768, 390)
SCREENS = 3
"""How much of a long page a picture shows."""
SCREEN = 900
MOST_BYTES = 150_000
COLOURS = (128, 64, 32, 24, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CASES], metavar="NAME")
    parser.add_argument("--pictures", action="store_true", help="draw the pages, too; needs Playwright and Chromium")
    given = parser.parse_args()
    if not given.names:
        save(PUBLISHED, published())
    for name in given.names or CASES:
        with TemporaryDirectory() as folder:
            write(name, Path(folder), pictures=given.pictures)


def write(name: str, scratch: Path, *, pictures: bool) -> None:
    target = FOLDER / name
    target.mkdir(exist_ok=True)
    runs = runs_of(name, scratch)
    save(target / "figures.json", figures(runs, scratch))
    made = write_report(runs, scratch)
    shutil.copy(made / "report.md", target)
    if pictures:
        draw(made / "report.html", target)


def save(file: Path, found: Figures) -> None:
    file.write_text(json.dumps(rounded(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def draw(page_file: Path, target: Path) -> None:
    """Draw the first screens of a page at each width."""
    with browser() as started:
        for width in WIDTHS:
            with opened(started, page_file, width=width) as page:
                height = min(page.evaluate("document.documentElement.scrollHeight"), SCREENS * SCREEN)
                clip = {"x": 0, "y": 0, "width": width, "height": height}
                picture = page.screenshot(full_page=True, clip=clip)
            (target / f"page-{width}.png").write_bytes(reduced(picture))


def reduced(picture: bytes) -> bytes:
    """Return a picture with as many colours as its largest size allows."""
    image = Image.open(BytesIO(picture)).convert("RGB")
    for colours in COLOURS:
        few = image.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # thin lines keep theirs
        few.save(file := BytesIO(), "PNG", optimize=True)
        if file.tell() <= MOST_BYTES:
            return file.getvalue()
    raise ValueError(f"a picture of {file.tell()} bytes with {colours} colours")


if __name__ == "__main__":
    main()
