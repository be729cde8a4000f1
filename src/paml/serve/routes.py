"""The service over HTTP: each route parses, calls and renders; what it does is in service.py.

Routes render answers themselves (`JSONResponse`), so that they are not checked twice; the models describe them.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BeforeValidator
from starlette.exceptions import HTTPException

from paml.errors import PamlError, UnknownUser
from paml.recommend.preference import By
from paml.recommend.requests import NewUser
from paml.recommend.user import User
from paml.serve import schemas
from paml.serve.middleware import segment
from paml.serve.problems import MEDIA_TYPE, Problem, of_error, of_validation
from paml.serve.service import Service, recommendations
from paml.serve.static import read_page
from paml.training.run import Run

VALUES_SHOWN = 1000  # of a field, most common first

PATTERN: dict[str, Any] = {"pattern": schemas.USABLE_PATTERN}
Name = Annotated[
    str,
    Path(
        description="Any text.",
        min_length=1,
        max_length=schemas.ID_LENGTH,
        examples=["anna"],
        json_schema_extra=PATTERN,
    ),
    BeforeValidator(segment),
    AfterValidator(schemas.usable),
]
ItemName = Annotated[
    str,
    Path(
        description="An item.", min_length=1, max_length=schemas.ID_LENGTH, examples=["318"], json_schema_extra=PATTERN
    ),
    BeforeValidator(segment),
    AfterValidator(schemas.usable),
]
Named = Annotated[list[schemas.Identity], Query(max_length=schemas.MAX_NAMED)]
MaybeNamed = Annotated[list[schemas.Identity] | None, Query(max_length=schemas.MAX_NAMED)]


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Possible problems, for OpenAPI: those that can happen anywhere, and a route's own."""
    everywhere = {
        400: "the request cannot be read",
        401: "a key is needed",
        404: "there is no such user",
        413: "the body is too large",
        415: "the body is not JSON",
        422: "a value cannot be used",
        429: "too many requests; Retry-After says when to try again",
        503: "not available now; Retry-After says when to try again",
    }
    return {
        status: {"model": schemas.ProblemOut, "description": everywhere[status]}
        for status in sorted({400, 401, 429, 503, *statuses})
    }


def create_app(run: Run, service: Service) -> FastAPI:
    """The application: routes over a service, to be put behind a `Guard`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="paml",
        summary="A new user rates three things and the answer changes.",
        version=version("paml"),
        docs_url=None,  # FastAPI's pages load their scripts from another site
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_users(app, service)
    _add_answers(app, service)
    _add_model(app, service, run)
    _add_operations(app, service)
    _add_page(app)
    _add_problems(app)
    _describe(app)
    return app


def _add_users(app: FastAPI, service: Service) -> None:
    @app.put(
        "/v1/users/{user_id}",
        response_model=schemas.UserOut,
        responses={201: {"model": schemas.UserOut, "description": "the user is new"}, **_problems(413, 415, 422)},
        summary="Create a user, or replace their profile",
    )
    async def put_user(user_id: Name, body: schemas.ProfileIn) -> Response:
        service.check(NewUser(body.profile))
        created = await service.stored(lambda store: store.put_user(user_id, body.profile))
        return JSONResponse(await _user(service, user_id), 201 if created else 200)

    @app.get(
        "/v1/users/{user_id}", response_model=schemas.UserOut, responses=_problems(404, 422), summary="A stored user"
    )
    async def get_user(user_id: Name) -> Response:
        return JSONResponse(await _user(service, user_id))

    @app.delete(
        "/v1/users/{user_id}",
        status_code=204,
        response_class=Response,
        responses=_problems(404, 422),
        summary="Delete a user: profile, ratings, and what was computed from them",
    )
    async def delete_user(user_id: Name) -> Response:
        try:
            gone = await service.stored(lambda store: store.delete_user(user_id))
        finally:  # also if the store fails after the user was deleted
            service.forget(user_id)
        if not gone:
            raise UnknownUser("there is no such user")
        return Response(status_code=204)

    @app.post(
        "/v1/users/{user_id}/ratings",
        response_model=schemas.RatingsOut,
        responses=_problems(404, 413, 415, 422),
        summary="Add ratings; earlier ones of the same items are replaced",
    )
    async def add_ratings(user_id: Name, body: schemas.RatingsIn) -> Response:
        ratings = body.as_ratings()
        service.check(NewUser({}, ratings))
        written = await service.stored(lambda store: store.add_ratings(user_id, ratings))
        return JSONResponse(
            {"id": user_id, "ratings": written.ratings}
        )  # reading again might answer 503 to a stored rating

    @app.delete(
        "/v1/users/{user_id}/ratings/{item:path}",
        status_code=204,
        response_class=Response,
        responses=_problems(404, 422),
        summary="Remove a rating",
    )
    async def remove_rating(user_id: Name, item: ItemName) -> Response:
        if not await service.stored(lambda store: store.remove_rating(user_id, item)):
            detail, expected = "the user has not rated this item", "an item they have rated"
            raise Problem(404, detail, kind="not-rated", field="item", value=item, expected=expected)
        return Response(status_code=204)


async def _user(service: Service, name: str) -> dict[str, Any]:
    found, (rate, group) = await service.read_and(name, lambda user: (user.rate, user.group), score=False)
    ratings = [
        {"item": r.item, "title": service.title(r.item), "value": r.value, "context": dict(r.context)}
        for r in found.ratings
    ]
    return {"id": name, "profile": found.profile, "ratings": ratings, "rate": rate, "group": group}


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.get(
        "/v1/users/{user_id}/recommendations",
        response_model=schemas.RecommendationsOut,
        responses=_problems(404, 422),
        summary="The best items for a user",
    )
    async def get_recommendations(
        user_id: Name,
        n: Annotated[int, Query(ge=1, le=schemas.MAX_ITEMS)] = 10,
        why: Annotated[int, Query(ge=0, le=schemas.MAX_REASONS)] = 0,
        exclude_seen: bool = True,
        among: MaybeNamed = None,
        by: By | None = None,
    ) -> Response:
        def finish(user: User) -> dict[str, Any]:
            return recommendations(user, n, why, among, exclude_seen=exclude_seen, by=by)

        return JSONResponse({"user": user_id, **await service.of_stored(user_id, finish)})

    @app.get(
        "/v1/users/{user_id}/predictions",
        response_model=schemas.PredictionsOut,
        responses=_problems(404, 422),
        summary="Predictions for some items",
    )
    async def get_predictions(user_id: Name, item: Named) -> Response:
        scores = await service.of_stored(user_id, lambda user: user.predict(item).tolist())
        found = [
            {"item": name, "title": service.title(name), "score": score}
            for name, score in zip(item, scores, strict=True)
        ]
        return JSONResponse({"user": user_id, "predictions": found})

    @app.get(
        "/v1/users/{user_id}/next-question",
        response_model=schemas.QuestionOut,
        responses=_problems(404, 422),
        summary="The item whose rating would help most",
    )
    async def get_next_question(user_id: Name, skip: MaybeNamed = None) -> Response:
        asked = await service.of_stored(user_id, lambda user: user.next_question(exclude=skip or ()))
        if asked is None:
            raise Problem(404, "the user has rated or skipped every item", kind="nothing-to-ask")
        return JSONResponse({"item": asked.item, "title": asked.title, "gain": asked.gain})

    @app.get(
        "/v1/users/{user_id}/rate-profile",
        response_model=schemas.RateProfileOut,
        responses=_problems(404, 422),
        summary="A user's learning rate among those of all users",
    )
    async def get_rate_profile(user_id: Name) -> Response:
        rate_profile, group = await service.of_stored(user_id, lambda user: (user.rate_profile(), user.group))
        return JSONResponse({**vars(rate_profile), "group": group})

    @app.post(
        "/v1/recommend",
        response_model=schemas.RecommendOut,
        responses=_problems(413, 415, 422),
        summary="The best items for a user who is not stored",
    )
    async def recommend(body: schemas.RecommendIn) -> Response:
        new_user = NewUser(body.profile, body.as_ratings())
        service.check(new_user)

        def finish(user: User) -> dict[str, Any]:
            return recommendations(user, body.n, body.why, body.among, exclude_seen=body.exclude_seen, by=body.by)

        return JSONResponse(await service.of_new_user(new_user, finish))


def _add_model(app: FastAPI, service: Service, run: Run) -> None:
    predictor, target = service.predictor, run.settings.data_schema.target

    @app.get("/v1/items", response_model=schemas.ItemsOut, responses=_problems(422), summary="Search the catalogue")
    def get_items(
        q: Annotated[str, Query(max_length=schemas.ID_LENGTH, description="Words of a title, or an id.")] = "",
        limit: Annotated[int, Query(ge=1, le=schemas.MAX_ITEMS)] = 20,
    ) -> Response:
        return JSONResponse({"items": [vars(found) for found in predictor.catalogue.search(q, limit=limit)]})

    model = {
        "method": run.settings.method,
        "target": {"kind": target.kind, "low": target.low, "high": target.high, "step": target.step},
        "items": len(predictor.catalogue),
        "fields": [
            {"name": field.name, "kind": str(field.kind), "values": list(field.values[:VALUES_SHOWN])}
            for field in predictor.fields
        ],
        "by": list(predictor.orders),
    }

    @app.get("/v1/model", response_model=schemas.ModelOut, responses=_problems(), summary="The model in use")
    async def get_model() -> Response:
        return JSONResponse(model)


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=schemas.StateOut, summary="Whether the process is alive")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get(
        "/readyz", response_model=schemas.StateOut, responses=_problems(), summary="Whether model and store answer"
    )
    async def readyz() -> Response:
        await service.check_ready()
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", response_class=Response, responses=_problems(), summary="Counters for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    files = read_page()

    def send(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise HTTPException(404)
        headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return send(request, "index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return send(request, name)


def _add_problems(app: FastAPI) -> None:
    def answer(convert: Callable[[Any], Problem]) -> Callable[[Request, Exception], Any]:
        async def handler(request: Request, error: Exception) -> Response:
            return convert(error).response()

        return handler

    app.add_exception_handler(RequestValidationError, answer(lambda error: of_validation(error.errors())))
    app.add_exception_handler(PamlError, answer(of_error))
    app.add_exception_handler(HTTPException, answer(_of_http))
    app.add_exception_handler(
        Exception, answer(lambda error: Problem(500, "something is wrong with the service, not with the request"))
    )


def _of_http(error: HTTPException) -> Problem:
    if isinstance(error, Problem):
        return error
    details = {404: "there is nothing at this path", 405: "this path does not take this method"}
    return Problem(error.status_code, details.get(error.status_code, error.detail), headers=error.headers)


def _describe(app: FastAPI) -> None:
    """OpenAPI with errors as application/problem+json, which they are, and the key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            for operations in found["paths"].values():
                for operation in operations.values():
                    for status, response in operation["responses"].items():
                        content = response.get("content", {})
                        if int(status) >= 400 and "application/json" in content:
                            response["content"] = {MEDIA_TYPE: content["application/json"]}
            found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"key": []}, {}]  # on loopback, no key is needed
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
