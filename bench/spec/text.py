"""Text from outside, made harmless where it is shown or stored.

Names, paths and messages may hold anything. An escape sequence could rewrite what a terminal shows,
a bidirectional override the order in which a page is read, and a cell that begins with an equals
sign is computed by a spreadsheet.
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
    r"""Return a text with unsafe characters as escapes, such as ``\x1b``.

    Line feeds and tabs become escapes only if it is to be ``one_line``.
    """
    text = UNSAFE.sub(_escape, text)
    if one_line:
        text = BREAKS.sub(_escape, text)
    return text


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain_within(value: Any) -> Any:
    """Return a value as JSON has it, with all texts in it plain, keys too."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): plain_within(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain_within(each) for each in value]
    return value


def quoted(text: str) -> str:
    """Return the text of a CSV's cell.

    What a spreadsheet would take for a formula has an apostrophe before it. ``unquoted`` returns
    the text again, whatever it was.
    """
    return f"'{text}" if FORMULA.match(text) else text


def unquoted(cell: str) -> str:
    """Return the text that ``quoted`` made a cell of; one that was never quoted stays as it is."""
    match = FORMULA.match(cell)
    if match and match["quotes"]:
        return cell[1:]
    return cell


def print_plain(text: str, *, error: bool = False, wrap: bool = True) -> None:
    """Print a text from anywhere, at once.

    Args:
        text: of one or more lines.
        error: whether it goes to stderr.
        wrap: whether a terminal breaks its lines between words; not in what programs read.
    """
    stream = sys.stderr if error else sys.stdout
    text = plain(text)
    if wrap and stream.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns)
    print(text, file=stream, flush=True)


def wrapped(text: str, width: int) -> str:
    """Return a text with lines of at most ``width`` characters, broken between words.

    What goes on in another line is indented by two more.
    """
    lines = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        parts = textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * (indent + 2),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        lines += parts or [""]
    return "\n".join(lines)
