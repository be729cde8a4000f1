"""The service's description in OpenAPI, for the model in use: its fields, its scale, its orders, and ids that exist.

What the description allows is accepted, except for what it cannot say: an item that is not in the catalogue, and an
item that is rated twice in one call. Their problems are `urn:paml:unknown-item` and `urn:paml:rated-twice`.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from paml.recommend.predictor import Predictor
from paml.recommend.preference import orders
from paml.serve import schemas
from paml.serve.problems import MEDIA_TYPE

MAX_LEVELS = 200  # of a scale that are listed one by one
DECIMALS, ROUNDING = 10, 1e-9  # 0.1 + 0.2 is 0.3
NUMBER = "^([+-]?[0-9]{1,15}([.][0-9]{1,15})?)?$"  # written as text; blank is unknown
HEADERS = {
    "X-Request-ID": {"description": "The request's id, also in the log.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}},
}


def describe(app: FastAPI, predictor: Predictor) -> None:
    """Let the application describe itself: errors as application/problem+json, which they are, the key, the model."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            for operations in found["paths"].values():
                for operation in operations.values():
                    _describe_answers(operation["responses"])
            found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"key": []}, {}]  # on loopback, no key is needed
            _narrow(found, predictor)
            app.openapi_schema = _with_examples(found, _examples(predictor))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_answers(responses: dict[str, Any]) -> None:
    for status, response in responses.items():
        content = response.get("content", {})
        if int(status) >= 400 and "application/json" in content:
            response["content"] = {MEDIA_TYPE: content["application/json"]}
        names = ("X-Request-ID", "Retry-After") if status in ("429", "503") else ("X-Request-ID",)
        response["headers"] = {name: HEADERS[name] for name in names}


def _narrow(found: dict[str, Any], predictor: Predictor) -> None:
    """Say what this model takes, where the schemas take what any model may."""
    models, encoding = found["components"]["schemas"], predictor.encoding
    profile = {field.name: _of_kind(str(field.kind)) for field in predictor.fields}
    profile |= dict.fromkeys(encoding.group_fields, schemas.FIELD_VALUE)
    for name in ("ProfileIn", "RecommendIn"):
        models[name]["properties"]["profile"] = _object(profile)
    context = {field.name: _of_kind(str(field.kind)) for field in encoding.context_fields}
    models["RatingIn"]["properties"] |= {"context": _object(context), "value": value_schema(predictor)}
    every, own = list(orders(rates=True, chooses=True)), list(predictor.orders)
    for part in _parts(found):
        if part.get("enum") == every:
            part["enum"] = own


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _of_kind(kind: str) -> dict[str, Any]:
    text, number, texts, nothing = schemas.FIELD_VALUE["anyOf"]
    if kind == "numeric":
        return {"anyOf": [number, {"type": "string", "pattern": NUMBER}, nothing]}
    return {"anyOf": [text, number, *([texts] if kind == "multi" else []), nothing]}


def value_schema(predictor: Predictor) -> dict[str, Any]:
    """The values that a rating may have: a list of them or, of many, multiples of the step, if they are."""
    target = predictor.target
    levels = [round(level, DECIMALS) for level in target.levels if level >= target.lowest]
    offset = target.low / target.step
    if len(levels) > MAX_LEVELS and abs(offset - round(offset)) < ROUNDING:
        limits = {"minimum": target.lowest, "maximum": target.high, "multipleOf": target.step}
        return {"type": "number", **limits, "title": "Value"}
    return {"type": "number", "enum": levels, "title": "Value"}


def _parts(value: Any) -> list[dict[str, Any]]:
    """All objects inside a JSON value."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    own = [value] if isinstance(value, dict) else []
    return own + [part for one in inside for part in _parts(one)]


def _examples(predictor: Predictor) -> dict[str, Any]:
    """What stands in the place of the schemas' own examples: by key for profiles and values, by text for items."""
    known = predictor.catalogue.search("", limit=3)
    items = dict(zip(schemas.EXAMPLE_ITEMS, (one.item for one in known), strict=False))
    titles = dict(zip(schemas.EXAMPLE_TITLES, (one.title for one in known), strict=False))
    profile = {field.name: field.values[0] for field in predictor.fields if field.values and str(field.kind) != "multi"}
    return {"profile": profile, "value": predictor.target.high, "texts": items | titles}


def _with_examples(value: Any, given: dict[str, Any], inside: bool = False) -> Any:
    """The description with examples of this model; `inside` an example, texts and values are replaced."""
    if isinstance(value, dict):
        if inside:
            value = {name: given[name] if name in ("profile", "value") else one for name, one in value.items()}
        return {name: _with_examples(one, given, inside or name == "examples") for name, one in value.items()}
    if isinstance(value, list):
        return [_with_examples(one, given, inside) for one in value]
    return given["texts"].get(value, value) if inside and isinstance(value, str) else value
