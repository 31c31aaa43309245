"""Debian's Chromium, driven by Playwright, and axe-core: each is looked for, and a test is skipped
where it is not.
"""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (375, 768, 1024, 1440)
UNFOLD = """() => {
    document.querySelectorAll("main details").forEach(part => { part.open = true });
    document.querySelectorAll(".unfold[aria-expanded=false]").forEach(button => button.click());
}"""
CUT_OFF = """least => {
    // A table may scroll in a box of its own; nothing else may, or be wider than the page.
    const width = document.documentElement.clientWidth, faults = [];
    const isOwnBox = one => one.matches(".wide");
    const name = one =>
        `${one.tagName} #${one.id} .${one.getAttribute("class")} ${one.textContent.slice(0, 40)}`;
    const whole = document.documentElement.scrollWidth;
    if (whole > width) faults.push(`the page: ${whole}`);
    for (const one of document.querySelectorAll("main *")) {
        if (one.matches("title, option, thead[hidden]")) continue;
        if (!one.checkVisibility({ contentVisibilityAuto: true })) continue;
        const box = one.getBoundingClientRect(), own = one.closest(".wide");
        const clip = getComputedStyle(one.closest("thead") ?? one).clipPath;
        if (clip !== "none" || box.width === 0) continue;
        if (!own && (box.left < -1 || box.right > width + 1))
            faults.push(`beyond the page: ${name(one)}`);
        const isWider = one.clientWidth && one.scrollWidth > one.clientWidth + 1;
        if (!isOwnBox(one) && !own && isWider && !one.closest("svg"))
            faults.push(`wider than its box: ${name(one)}`);
        if (own === one && (box.left < 0 || box.right > width))
            faults.push(`a box beyond the page: ${name(one)}`);
        if (!one.matches("svg text")) continue;
        const scale = Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b);
        if (scale * parseFloat(getComputedStyle(one).fontSize) < least)
            faults.push(`too small to read: ${name(one)}`);
    }
    return faults;
}"""


@contextmanager
def browser():
    """Start a browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@contextmanager
def opened(browser, path, *, fragment="", width=1440, **more):
    """Open a file as a page; fail on anything it asks for, or says on its console."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **more)
    page = context.new_page()
    heard = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url))
    page.goto(f"{path.as_uri()}#{fragment}")
    yield page
    for text in heard:
        assert text.startswith(("data:", path.as_uri()))
    context.close()


def axe():
    """Return axe-core's source."""
    installed = ROOT / ".venv" / "node_modules" / "axe-core" / "axe.min.js"
    path = Path(os.environ.get("AXE_CORE", installed))
    if not path.is_file():
        pytest.skip(
            "there is no axe-core: npm install --prefix .venv axe-core, or AXE_CORE=PATH/axe.min.js"
        )
    return path.read_text()
