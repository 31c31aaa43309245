"""Text from outside is text: nothing in it has an effect on a terminal, a page or a spreadsheet."""

import sys
import unicodedata

import pytest

from bench.spec.text import plain, plain_within, print_plain, quoted, unquoted, wrapped

BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_no_control_character_and_no_change_of_direction_is_left():
    every = "".join(map(chr, range(0x11000)))
    left = plain(every, one_line=True)
    for char in left:
        assert unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(char) not in BIDIRECTIONAL
    assert left.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("resnet20 ± 3 %\n\tindented", "resnet20 ± 3 %\n\tindented"),
        ("Zürich 显卡 עברית 👩‍💻", "Zürich 显卡 עברית 👩‍💻"),
        ("\x1b[31m\u202eevil\x9b", r"\x1b[31m\u202eevil\x9b"),
    ],
)
def test_what_was_there_can_still_be_read(text, shown):
    assert plain(text) == shown


def test_all_texts_of_an_object_become_plain():
    assert plain_within({"\x07": ["\x07", {"a": "\x07"}, 1.5, None, True]}) == {
        r"\x07": [r"\x07", {"a": r"\x07"}, 1.5, None, True]
    }


@pytest.mark.parametrize(
    "text", ["=1+1", "+SUM(A1)", "-2+3", "@cmd", " =1", "\t=1", "\n=1", "＝1", "'=1", "''-x"]
)
def test_what_a_spreadsheet_would_compute_is_quoted(text):
    assert quoted(text) == f"'{text}"
    assert unquoted(f"'{text}") == text


@pytest.mark.parametrize(
    "text", ["-0.5", "+1", "-1e-05", "1", "resnet20", "'quoted'", "", "a=b", "0+1"]
)
def test_other_text_is_not_quoted(text):
    assert quoted(text) == text
    assert unquoted(text) == text


def test_what_is_printed_is_plain(capsys):
    print_plain("\x1b[2Jgone")
    print_plain("\x07", error=True)
    assert capsys.readouterr() == ("\\x1b[2Jgone\n", "\\x07\n")


def test_lines_of_a_terminal_break_between_words():
    text = (
        "  channels-last   images and convolutions' weights lie in memory by channel\n\n- one two"
    )
    lines = wrapped(f"{text} {'x' * 70}", 30).split("\n")
    *others, last = lines
    assert last.strip() == "x" * 70
    assert " ".join(others).split() == text.split()
    assert max(map(len, others)) <= 30
    assert others[1].startswith("    convolutions'")


def test_what_programs_read_is_not_wrapped(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    print_plain("word " * 30, wrap=False)
    print_plain("word " * 30)
    first, *others = capsys.readouterr().out.splitlines()
    assert len(first) == 150
    assert max(map(len, others)) <= 20
