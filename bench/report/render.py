"""The page's text: its templates filled in, and what others wrote made harmless."""

from __future__ import annotations

import re

import jinja2
from markupsafe import Markup

from bench.report.figures.axes import Plot

PLAIN = re.compile(r"(?! )(?:[^\s\\`*|~$\]&<>_]|\](?![(\[:])| (?=[^\s]))*")
"""Text that means nothing to markdown, as nearly all cells hold: words, figures, intervals."""


def render(template: str, *, html: bool, **what: object) -> str:
    """Fill in a template that lies beside this file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench.report", "."),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = markdown
    environment.filters["inline"] = inline
    return environment.get_template(template).render(**what)


def markdown(text: str) -> str:
    """Escape text for markdown, a table's cell included: what it says is shown, and does nothing."""
    if PLAIN.fullmatch(text := str(text)):
        return text
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = re.sub(r"([\\`*|~$]|\](?=[(\[:]))", r"\\\1", flat)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)


def inline(plot: Plot) -> Markup:
    """Return a plot's SVG for use within a page: no prologue, and ids that no other plot has."""
    svg = plot.svg[plot.svg.index("<svg") :]
    svg = re.sub(r'\b(id="|xlink:href="#|href="#|url\(#)', rf"\g<1>{plot.name}-", svg)
    label = Markup.escape(plot.caption)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
