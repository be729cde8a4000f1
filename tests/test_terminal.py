"""What others have written is shown on a terminal and never obeyed."""

import pytest

from commands import run
from paml.terminal import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\r\nb\tc\x7f", r"a\r\nb\tc\x7f"),
        ("a\u202egnp.exe\u2066", r"a\u202egnp.exe\u2066"),
        ("\u2028\u2029\ud800", r"\u2028\u2029\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


@pytest.mark.parametrize(
    "text", ["", "Amélie (2001)", "七人の侍", "מלך האריות", "👩‍👩‍👧", "می‌خواهم", r"back\slash", "a b"]
)
def test_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_errors_show_what_was_typed_and_do_not_obey_it() -> None:
    done = run("evaluate", "no\x1b[31m such\x07 run")
    assert done.returncode == 1
    assert r"no\x1b[31m such\x07 run" in done.stderr
    assert "\x1b" not in done.stderr
