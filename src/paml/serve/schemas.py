"""Request and response bodies: requests are checked strictly, both are described for OpenAPI with examples."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from paml.recommend.preference import By
from paml.recommend.requests import Rating
from paml.serve.store.values import MAX_ITEM

ID_LENGTH = 200
RATINGS_PER_CALL = 500
MAX_ITEMS = 100
MAX_REASONS = 5
MAX_NAMED = 500
"""Items that `among`, `item` or `skip` may name."""

PROFILE_FIELDS = 100
TEXT_LENGTH = 1000
LIST_LENGTH = 100
MAX_NUMBER = 2**53 - 1  # whole numbers up to here are the same in every client

UNUSABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # what some databases cannot store, or UTF-8 cannot encode
USABLE_PATTERN = "^[^\\x00-\\x1f\\x7f]*$"


def usable(text: str) -> str:
    """The text, if every database can store it and every client can read it."""
    if UNUSABLE.search(text):
        raise ValueError("text without control characters, in valid Unicode")
    return text


def _field_value(value: object) -> object:
    """A profile's or context's value: which of them a field accepts depends on the model."""
    if isinstance(value, str):
        if len(value) > TEXT_LENGTH:
            raise ValueError(f"at most {TEXT_LENGTH} characters")
        return usable(value)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER):
        return value
    if isinstance(value, list) and len(value) <= LIST_LENGTH and all(isinstance(entry, str) for entry in value):
        return [_field_value(entry) for entry in value]
    raise ValueError("a text, a number below 2 to the power of 53, a list of texts, or null")


def _whole(value: object) -> object:
    """JSON knows no integers: 4.0 is 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _id(most: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "minLength": 1, "maxLength": most, "pattern": USABLE_PATTERN})


Identity = Annotated[str, Field(min_length=1, max_length=ID_LENGTH), AfterValidator(usable), _id(ID_LENGTH)]
Item = Annotated[str, Field(min_length=1, max_length=MAX_ITEM), AfterValidator(usable), _id(MAX_ITEM)]
_TEXT: dict[str, Any] = {"type": "string", "maxLength": TEXT_LENGTH, "pattern": USABLE_PATTERN}
FIELD_VALUE: dict[str, Any] = {
    "anyOf": [
        _TEXT,
        {"type": "number", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER},
        {"type": "array", "items": _TEXT, "maxItems": LIST_LENGTH},
        {"type": "null"},
    ]
}
FieldValue = Annotated[Any, PlainValidator(_field_value), WithJsonSchema(FIELD_VALUE)]
FieldValues = Annotated[dict[Identity, FieldValue], Field(max_length=PROFILE_FIELDS)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]

PROFILE: dict[str, Any] = {"gender": "F", "age": "25"}
RATING: dict[str, Any] = {"item": "318", "value": 5}
TITLE = "Shawshank Redemption, The (1994)"
EXAMPLE_ITEMS, EXAMPLE_TITLES = ("318", "2858", "527"), (TITLE, "American Beauty (1999)", "Schindler's List (1993)")
ADVICE: dict[str, Any] = {
    "item": "527",
    "title": "Schindler's List (1993)",
    "score": -3.12,
    "rating": 4.62,
    "chance": 0.0213,
    "because": [{"item": "318", "title": TITLE, "value": 5.0, "effect": 0.31}],
}
ADVISED: dict[str, Any] = {"rate": 0.82, "group": "major", "unknown": [], "items": [ADVICE]}


class Request(BaseModel):
    """A request's body; unknown names are refused."""

    model_config = ConfigDict(extra="forbid")


class ProfileIn(Request):
    """Who a user is: any of the model's profile fields (`GET /v1/model` lists them)."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"profile": PROFILE}]})

    profile: FieldValues = Field(default_factory=dict)


class RatingIn(Request):
    """A user's rating of an item, on the model's scale (a click: 0 or 1; a choice: its strength, usually 1)."""

    item: Item
    value: Finite
    context: FieldValues = Field(default_factory=dict)


class Rated(Request):
    """A request with ratings."""

    ratings: list[RatingIn]

    def as_ratings(self) -> list[Rating]:
        """The ratings as the library takes them."""
        return [Rating(rating.item, rating.value, rating.context) for rating in self.ratings]


class RatingsIn(Rated):
    """Ratings to add; earlier ones of the same items are replaced."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"ratings": [RATING, {"item": "2858", "value": 2}]}]}
    )

    ratings: Annotated[list[RatingIn], Field(min_length=1, max_length=RATINGS_PER_CALL)]


class RecommendIn(Rated):
    """A new user who is not stored, and what to recommend to them."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"profile": PROFILE, "ratings": [RATING], "n": 10, "why": 1}]}
    )

    profile: FieldValues = Field(default_factory=dict)
    ratings: Annotated[list[RatingIn], Field(max_length=RATINGS_PER_CALL)] = Field(default_factory=list)
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_ITEMS), BeforeValidator(_whole)] = 10
    why: Annotated[int, Field(strict=True, ge=0, le=MAX_REASONS), BeforeValidator(_whole)] = 0
    among: Annotated[list[Item], Field(max_length=MAX_NAMED)] | None = None
    exclude_seen: Annotated[bool, Field(strict=True)] = True
    by: By | None = None


class Answer(BaseModel):
    """An answer's body."""


class RatingOut(Answer):
    """A stored rating; the title is null if the model in use does not know the item."""

    item: str
    title: str | None
    value: float
    context: dict[str, Any]


class UserOut(Answer):
    """A stored user, with the learning rate and the group that the model gives them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "anna",
                    "profile": PROFILE,
                    "ratings": [{**RATING, "title": TITLE, "context": {}}],
                    "rate": 0.82,
                    "group": "major",
                    "unknown": [],
                }
            ]
        }
    )

    id: str
    profile: dict[str, Any]
    ratings: list[RatingOut]
    rate: float
    group: str | None
    unknown: list[str]
    """Profile fields whose values the model does not know: they count as not given."""


class RatingsOut(Answer):
    """How many ratings a user now has."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "anna", "ratings": 2}]})

    id: str
    ratings: int


class ReasonOut(Answer):
    """One of the user's own ratings, and by how much it moved the score."""

    item: str
    title: str | None
    value: float
    effect: float


class ScoreOut(Answer):
    """An item with its predicted rating (or click probability)."""

    item: str
    title: str | None
    score: float


class AdviceOut(ScoreOut):
    """A recommended item; `because` has at most `why` reasons, strongest first.

    `score` is what the list is ordered by, `rating` the predicted rating (or click probability), `chance` the chance
    that the user chooses this item next; the last two are null where the model does not know.
    """

    rating: float | None
    chance: float | None
    because: list[ReasonOut]


class RecommendOut(Answer):
    """Recommended items, the best first."""

    model_config = ConfigDict(json_schema_extra={"examples": [ADVISED]})

    rate: float
    group: str | None
    unknown: list[str]
    """Profile fields whose values the model does not know: they count as not given."""
    items: list[AdviceOut]


class RecommendationsOut(RecommendOut):
    """Recommended items for a stored user, the best first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "anna", **ADVISED}]})

    user: str


class PredictionsOut(Answer):
    """Predictions in the order in which the items were named."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"user": "anna", "predictions": [{"item": "527", "title": ADVICE["title"], "score": 4.62}]}]
        }
    )

    user: str
    predictions: list[ScoreOut]


class QuestionOut(Answer):
    """The item whose rating is expected to help most."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"item": "318", "title": TITLE, "gain": 0.14}]})

    item: str
    title: str | None
    gain: float


class RateProfileOut(Answer):
    """A user's rate among the training users': histograms over `edges`, and the groups of the most similar users."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "rate": 0.82,
                    "percentile": 61.5,
                    "group": "major",
                    "edges": [0.6, 0.8, 1.0],
                    "major": [3000, 1200],
                    "minor": [200, 300],
                    "similar": {"major": 7, "minor": 3},
                    "equal": False,
                }
            ]
        }
    )

    rate: float
    percentile: float
    group: str | None
    edges: list[float]
    major: list[int]
    minor: list[int]
    similar: dict[str, int]
    equal: bool
    """Whether all rates are practically the same."""


class ItemOut(Answer):
    """An item of the catalogue, with the number of its ratings in training."""

    item: str
    title: str | None
    ratings: int


class ItemsOut(Answer):
    """Items found, best known first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [{"item": "318", "title": TITLE, "ratings": 1600}]}]}
    )

    items: list[ItemOut]


class TargetOut(Answer):
    """What is predicted: a rating on a scale of equal steps, a click, or a choice of strength 1 to `high`."""

    kind: Literal["rating", "click", "choice"]
    low: float
    high: float
    step: float


class FieldOut(Answer):
    """A profile field; `values` are those known to the model (none for a number)."""

    name: str
    kind: Literal["categorical", "multi", "numeric"]
    values: list[str]


class ModelOut(Answer):
    """The model in use."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "method": "ridge",
                    "target": {"kind": "rating", "low": 1, "high": 5, "step": 1},
                    "items": 3883,
                    "index": None,
                    "fields": [{"name": "gender", "kind": "categorical", "values": ["M", "F"]}],
                    "by": ["preference", "choice", "rating"],
                    "rate": "prior variance",
                }
            ]
        }
    )

    method: str
    target: TargetOut
    items: int
    index: dict[str, float] | None
    """`candidates` that are scored for a list, and `recall` of its ten best; null if all items are scored."""
    fields: list[FieldOut]
    by: list[By]
    """What lists may be ordered by; the first is the default."""
    rate: str
    """What a user's rate is: a learning rate, or the variance of a prior."""


class StateOut(Answer):
    """Whether the service works."""

    status: Literal["ok"] = "ok"


class ProblemOut(Answer):
    """Why a request was refused (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:paml:unknown-item",
                    "title": "Value cannot be used",
                    "status": 422,
                    "detail": "there is no item '3l8'; expected an id such as '3'",
                    "field": "item",
                    "value": "3l8",
                    "expected": "an id such as '3'",
                    "request_id": "5f3a9c0e1b7d2468",
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    value: Any = None
    expected: str | None = None
    request_id: str | None = None
