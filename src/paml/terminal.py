"""Text of others on a terminal: titles, ids and names of keys are shown, and never obeyed."""

import re

# Control characters (an escape sequence begins with one; so do C1's), separators of lines, halves of surrogate pairs,
# and marks that reverse the direction of what follows. Marks inside words and emoji (U+200C, U+200D) are text.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Text in one line that any terminal can show; what it would obey is written out: `\x1b[2J`, `\n`, `\u202e`."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
