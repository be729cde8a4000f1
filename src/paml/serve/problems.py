"""Errors as problem documents (RFC 9457, application/problem+json): what is invalid, which field, what is expected."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from paml.errors import (
    InputError,
    PamlError,
    RatedTwice,
    StoreUnavailable,
    TooManyRatings,
    TooManyUsers,
    UnknownField,
    UnknownItem,
    UnknownUser,
)
from paml.serve.current import request_id

MEDIA_TYPE = "application/problem+json"
SHOWN = 200  # characters of an invalid value that are repeated to the sender
RETRY_SECONDS = 2
KINDS = {
    UnknownItem: "unknown-item",
    UnknownField: "unknown-field",
    TooManyRatings: "too-many-ratings",
    RatedTwice: "rated-twice",
}

TITLES = {
    400: "Request cannot be read",
    401: "A key is needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Request took too long",
    413: "Request is too large",
    415: "JSON is expected",
    421: "Unknown host name",
    422: "Value cannot be used",
    429: "Too many requests",
    500: "Internal error",
    503: "Not available now",
    507: "The store is full",
}


class Problem(HTTPException):
    """A request that is answered with an error: status, sentence and, if any, field, value and expectation."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        field: str | None = None,
        value: object = None,
        expected: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.kind = kind
        self.field, self.value, self.expected = field, value, expected

    def document(self) -> dict[str, Any]:
        """The problem's members, as they are sent."""
        title = TITLES.get(self.status_code, "Error")
        kind = self.kind or title.lower().replace(" ", "-")
        found: dict[str, Any] = {
            "type": f"urn:paml:{kind}",
            "title": title,
            "status": self.status_code,
            "detail": self.detail,
        }
        if self.field is not None:
            found |= {"field": self.field, "value": shown(self.value)}
        if self.expected is not None:
            found["expected"] = self.expected
        if (number := request_id.get()) is not None:
            found["request_id"] = number
        return found

    def response(self) -> Response:
        """What is sent; plain ASCII, so that even half a surrogate pair can be repeated to its sender."""
        return Response(json.dumps(self.document()), self.status_code, dict(self.headers or {}), MEDIA_TYPE)


def unavailable(detail: str, kind: str | None = None, seconds: int = RETRY_SECONDS) -> Problem:
    """The service cannot answer now and says when to try again."""
    return Problem(503, detail, kind=kind, headers={"Retry-After": str(seconds)})


def shown(value: object) -> Any:
    """A value that can be repeated as JSON: scalars as they are, the rest as text; never long."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    if isinstance(value, float) and value - value == 0:  # finite: there is no JSON for the others
        return value
    text = value if isinstance(value, str) else _text(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _text(value: object) -> str:
    if isinstance(value, int):
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping | list | tuple):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)}"
    return repr(value)


def of_validation(errors: list[Any]) -> Problem:
    """The first of pydantic's complaints about a request."""
    first = errors[0]
    source, *inside = [str(part) for part in first["loc"]] or ["body"]
    if first["type"] == "json_invalid":
        place = f"at character {inside[0]}" if inside else "somewhere"
        detail = f"the body is not JSON: {first['ctx'].get('error', 'invalid')} {place}"
        return Problem(400, detail, kind="not-json", field="body", expected="a JSON object")
    field = ".".join(inside) or source
    expected = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return Problem(422, f"'{field}' is missing", field=field, expected="a value", kind="missing")
    if first["type"] == "extra_forbidden":
        detail = f"'{field}' is not a known field; /openapi.json lists them"
        return Problem(422, detail, field=field, value=first["input"], expected="no such field", kind="unknown-field")
    detail = f"'{field}': {expected[:1].lower()}{expected[1:]}"
    return Problem(422, detail, field=field, value=first["input"], expected=expected)


def of_error(error: PamlError) -> Problem:
    """The library's errors as problems; what a database says is not repeated to callers."""
    match error:
        case StoreUnavailable():
            return unavailable(
                "the store does not answer; send the request again: repeating a write does no harm",
                kind="store-unavailable",
            )
        case UnknownUser():
            return Problem(404, "there is no such user; create them with PUT /v1/users/{user_id}", kind="unknown-user")
        case TooManyUsers():
            return Problem(507, str(error), kind="too-many-users")
        case InputError():
            kind = next((kind for cause, kind in KINDS.items() if isinstance(error, cause)), None)
            return Problem(422, str(error), kind=kind, field=error.field, value=error.value, expected=error.expected)
        case _:
            return Problem(422, str(error))
