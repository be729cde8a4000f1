"""What a store can keep: texts, numbers and JSON, checked before a database is asked."""

import json
import math
from collections.abc import Mapping
from typing import Any

from paml.errors import InputError, shortened
from paml.recommend.requests import Rating
from paml.terminal import printable

MAX_ID = 200  # characters; PostgreSQL's indexes hold at most some 2,700 bytes
MAX_ITEM = 500
MAX_JSON = 100_000


def rating_row(rating: Rating) -> dict[str, Any]:
    """A rating as a row without its user, checked."""
    check_text(rating.item, "item", MAX_ITEM)
    if not math.isfinite(rating.value):
        what = f"the rating of item {shown(rating.item)} is {rating.value}"
        raise InputError(what, field="value", value=rating.value, expected="a finite number")
    return {"item": rating.item, "value": float(rating.value), "context": as_json(rating.context, "context")}


def as_json(values: Mapping[str, Any], what: str) -> str:
    """Plain values as JSON, checked."""
    try:
        text = json.dumps(dict(values), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:  # a half of a surrogate pair is a ValueError as well
        given = ascii(dict(values))
        raise InputError(
            f"the {what} is not JSON ({error})", field=what, value=given, expected="plain values"
        ) from None
    if len(text) > MAX_JSON:
        expected = f"at most {MAX_JSON:,} characters as JSON"
        raise InputError(f"the {what} is too long", field=what, value=text, expected=expected)
    return text


def check_text(text: str, field: str, max_length: int) -> None:
    """Refuse what one of the databases could not store, so that moving from one to the other loses nothing."""
    if not 0 < len(text) <= max_length:
        expected = f"1 to {max_length} characters"
        raise InputError(f"the {field} has {len(text):,} characters", field=field, value=shown(text), expected=expected)
    if not storable(text):
        what = f"the {field} {shown(text)} holds a NUL character or half of a surrogate pair"
        raise InputError(what, field=field, value=shown(text), expected="any other Unicode text")


def check_name(name: str) -> None:
    """Refuse a key's name that a database could not store, or that a terminal would obey."""
    check_text(name, "key name", MAX_ID)
    if printable(name) != name:
        expected = "text without control characters"
        raise InputError(
            f"the key name '{printable(name)}' cannot be shown", field="key name", value=name, expected=expected
        )


def storable(text: str) -> bool:
    """Whether both databases can hold it."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def shown(text: str) -> str:
    """Text for a message: any message can be written, whatever the text holds."""
    return f"'{shortened(text).encode('utf-8', 'backslashreplace').decode()}'"
