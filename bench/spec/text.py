"""Text from outside: names, paths and messages that may hold anything, made harmless where they are shown or stored.

An escape sequence could rewrite what a terminal shows, a bidirectional override the order in which
a page is read, and a cell that begins with an equals sign is computed by a spreadsheet.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import Any

# All control characters but the line feed and the tabulator.
CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
# Marks, embeddings, overrides and isolates of the Unicode Bidirectional Algorithm (UAX 9, section
# 2).
DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Those, separators of lines and paragraphs, byte order marks, and halves of surrogate pairs, which
# no file holds.
UNSAFE = re.compile(f"[{CONTROLS}{DIRECTIONS}\u2028\u2029\ufeff\ud800-\udfff]")
BREAKS = re.compile(r"[\n\t]")
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"
# Text that spreadsheets take for a formula, behind any number of apostrophes; a number is none.
FORMULA = re.compile(rf"(?P<quotes>'*)(?!{NUMBER})(?:\s*[=+\-@＝＋－＠]|[\t\n])")


def plain(text: str, *, one_line: bool = False) -> str:
    r"""Return a text with unsafe characters as escapes, such as ``\x1b``, line feeds and tabs only if ``one_line``."""
    text = UNSAFE.sub(_escape, text)
    return BREAKS.sub(_escape, text) if one_line else text


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain_within(value: Any) -> Any:
    """Return a value as JSON has it, with all texts in it plain, keys too."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): plain_within(each) for key, each in value.items()}
    return [plain_within(each) for each in value] if isinstance(value, list) else value


def quoted(text: str) -> str:
    """Return the text of a CSV's cell: with an apostrophe before what a spreadsheet would take for a formula.

    ``unquoted`` returns the text again, whatever it was.
    """
    return f"'{text}" if FORMULA.match(text) else text


def unquoted(cell: str) -> str:
    """Return the text that ``quoted`` made a cell of; a cell that was never quoted is returned as it is."""
    match = FORMULA.match(cell)
    return cell[1:] if match and match["quotes"] else cell


def print_plain(text: str, *, error: bool = False, wrap: bool = True) -> None:
    """Print a text from anywhere, at once; what programs read does not ``wrap`` between words as on a terminal."""
    stream = sys.stderr if error else sys.stdout
    text = plain(text)
    if wrap and stream.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns)
    print(text, file=stream, flush=True)


def wrapped(text: str, width: int) -> str:
    """Return a text with lines of at most ``width`` characters, broken between words, and later ones indented more."""
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [""]
    return "\n".join(lines)
