"""What goes wrong, in words: every error that a user can cause says what, where and how to fix it.

PamlError
├── SettingsError   a setting, recipe or argument that cannot be used
│   ├── TooLarge    settings of a training that this machine cannot hold
│   └── InputError  a new user's profile or rating that cannot be used: field, value, expectation
│       ├── UnknownItem
│       ├── UnknownField
│       ├── RatedTwice      an item more than once among the ratings of one call
│       └── TooManyRatings  more ratings of one user than the store keeps
├── DataError       input data that cannot be read as what it claims to be
├── FormatError     a file of our own (prepared data set, run, store) that is damaged, edited or of another version
├── InUse           a folder in which another process is at work
├── TrainingError   training that cannot go on
├── LeakageError    training that read what it must not know: a bug, never to be passed over
├── TooManyUsers    more users than the store may hold
├── UnknownUser     a user who is not in the store
└── StoreUnavailable  a database that does not answer now; the same call may succeed later
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


class PamlError(Exception):
    """Base of all errors that are the input's fault; the command line shows it as one line and exits with 1.

    `argument` names the argument of the library that the remedy is about (`out`, `path`, ...), so that the command line
    can add its own option for it; the text itself names no options.
    """

    def __init__(
        self, what: str, *, where: object = None, remedy: str | None = None, argument: str | None = None
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.remedy = remedy
        self.argument = argument
        super().__init__(what)

    def __str__(self) -> str:
        located = f"{self.where}: {self.what}" if self.where else self.what
        return f"{located}; {self.remedy}" if self.remedy else located


class SettingsError(PamlError):
    """A setting that is unknown, of the wrong type or out of range."""


class TooLarge(SettingsError):  # noqa: N818
    """Settings of a network, or of its training, that this machine cannot hold."""


class InputError(SettingsError):
    """Input about a new user that cannot be used; services show field, value and expectation separately."""

    def __init__(self, what: str, *, field: str, value: object, expected: str, remedy: str | None = None) -> None:
        self.field, self.value, self.expected = field, shortened(value), expected
        super().__init__(what, remedy=remedy or f"expected {expected}")


class UnknownItem(InputError):  # noqa: N818, as in a sentence: "unknown item"
    """An item that the catalogue does not have."""

    def __init__(self, item: object, expected: str) -> None:
        self.item = shortened(item)
        super().__init__(f"there is no item '{self.item}'", field="item", value=item, expected=expected)


class UnknownField(InputError):  # noqa: N818
    """A field of a profile or a context that the model does not have."""

    def __init__(self, what: str, name: object, value: object, known: Iterable[str]) -> None:
        short, known = shortened(name), sorted(known)
        expected = f"one of {', '.join(known)}" if known else "none"
        remedy = nearest(short, known) if known else "give none"
        super().__init__(f"there is no {what} '{short}'", field=short, value=value, expected=expected, remedy=remedy)


class RatedTwice(InputError):  # noqa: N818
    """An item that is rated more than once in one call."""

    def __init__(self, item: object) -> None:
        what = f"item '{shortened(item)}' is rated twice"
        super().__init__(what, field="item", value=item, expected="each item once")


class DataError(PamlError):
    """Input data that is missing, damaged or contradicts its description."""


@dataclass(frozen=True)
class Again:
    """The command that makes what another version wrote anew: its words, and its options by the library's arguments."""

    words: Sequence[str]
    options: Mapping[str, object]


class FormatError(PamlError):
    """A file written by paml that is incomplete, was edited, or belongs to another version.

    Formats of other versions are not converted; `again` is the command that replaces them, which the command line adds.
    """

    def __init__(self, what: str, *, again: Again | None = None, **more: Any) -> None:
        self.again = again
        super().__init__(what, **more)


class InUse(PamlError):  # noqa: N818
    """A folder in which another process is at work."""


class TrainingError(PamlError):
    """Training that cannot go on: a loss that is not finite."""


class LeakageError(PamlError):
    """Training that read a row of a validation or test user."""


class UnknownUser(PamlError):  # noqa: N818
    """A user who is not in the store: never created, or deleted."""


class TooManyRatings(InputError):  # noqa: N818
    """More ratings of one user than the store keeps."""

    def __init__(self, count: int, maximum: int) -> None:
        what = f"{count} ratings of one user, at most {maximum} are kept"
        super().__init__(
            what, field="ratings", value=count, expected=f"at most {maximum} of one user", remedy="remove some first"
        )


class TooManyUsers(PamlError):  # noqa: N818
    """One more user than the store may hold."""

    def __init__(self, maximum: int) -> None:
        remedy = "delete some, or raise the limit"
        super().__init__(f"the store is full: it holds {maximum:,} users", remedy=remedy, argument="max_users")


class StoreUnavailable(PamlError):  # noqa: N818
    """A database that is lost, locked or out of space; what was acknowledged stays, and the call may be repeated."""


def shortened(value: object, max_length: int = 60) -> str:
    """A value for a message, however long it is."""
    text = str(value)
    return text if len(text) <= max_length else f"{text[:max_length]}... ({len(text):,} characters)"


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` or, where no name is similar, the list of known names."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {shortened(', '.join(known), 500)}"
