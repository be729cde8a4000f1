"""The service over HTTP: each route parses, calls and renders; what it does is in service.py.

Routes render answers themselves (`JSONResponse`), so that they are not checked twice; the models describe them.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BeforeValidator
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Scope

from paml.errors import PamlError, UnknownUser
from paml.recommend.preference import By
from paml.recommend.requests import NewUser
from paml.recommend.user import User
from paml.serve import schemas
from paml.serve.admin import DeletedOut, add_audit, still_there
from paml.serve.costs import asking, explaining, listing
from paml.serve.description import describe
from paml.serve.middleware import KEY_NAME, segment
from paml.serve.problems import Problem, of_error, of_validation
from paml.serve.service import Service, recommendations
from paml.serve.static import read_page
from paml.serve.store.audit import NOBODY
from paml.serve.store.store import StoredUser
from paml.serve.store.values import MAX_ITEM
from paml.training.run import Run

RECOMMEND = "/v1/recommend"  # what new users ask
VALUES_SHOWN = 1000  # of a field, most common first

WITH_BODY = (403, 408, 413, 415)  # problems of requests with a body
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
    Path(description="An item.", min_length=1, max_length=MAX_ITEM, examples=["318"], json_schema_extra=PATTERN),
    BeforeValidator(segment),
    AfterValidator(schemas.usable),
]
Named = Annotated[list[schemas.Item], Query(max_length=schemas.MAX_NAMED)]
MaybeNamed = Annotated[list[schemas.Item] | None, Query(max_length=schemas.MAX_NAMED)]


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Possible problems, for OpenAPI: those that can happen anywhere, and a route's own."""
    everywhere = {
        400: "the request cannot be read",
        401: "a key is needed",
        403: "the key's scope is too small, or a page of another site wants to write",
        404: "there is no such user",
        408: "the body did not arrive in time",
        413: "the body is too large",
        415: "the body is not JSON",
        421: "the service is not known by this host name",
        422: "a value cannot be used, such as an item that is not in the catalogue, or one that is rated twice",
        429: "too many requests; Retry-After says when to try again",
        503: "not available now; Retry-After says when to try again",
        507: "the store holds as many users as it may",
    }
    return {
        status: {"model": schemas.ProblemOut, "description": everywhere[status]}
        for status in sorted({400, 401, 421, 429, 503, *statuses})
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
        telemetry={"tracing": False, "metrics": False, "logs": False},  # asked for in every request; see telemetry.py
        lifespan=lifespan,
    )
    _add_users(app, service)
    _add_answers(app, service)
    _add_model(app, service, run)
    _add_operations(app, service)
    add_audit(app, service, _problems(403, 422))
    _add_page(app)
    _add_problems(app)
    describe(app, service.predictor)
    return app


def methods_of(app: FastAPI) -> Callable[[Scope], set[str]]:
    """Which methods a request's path takes; none if there is nothing at it."""
    known = [(route.path_regex, route.methods or ()) for route in app.routes if isinstance(route, Route)]

    def find(scope: Scope) -> set[str]:
        return {method for pattern, methods in known if pattern.match(scope["path"]) for method in methods}

    return find


def line_of(service: Service) -> Callable[[Scope], None]:
    """Refuses requests that always need the model while too many wait for it: cheaply, before anything is parsed."""

    def check(scope: Scope) -> None:
        if scope["path"] == RECOMMEND:
            service.check_line()

    return check


def _add_users(app: FastAPI, service: Service) -> None:
    @app.put(
        "/v1/users/{user_id}",
        response_model=schemas.UserOut,
        responses={
            201: {"model": schemas.UserOut, "description": "the user is new"},
            **_problems(*WITH_BODY, 422, 507),
        },
        summary="Create a user, or replace their profile",
    )
    async def put_user(user_id: Name, body: schemas.ProfileIn, request: Request) -> Response:
        await service.check(NewUser(body.profile))
        (created, found), rated = await service.of_written(
            user_id, lambda store: store.put_user(user_id, body.profile, _by(request)), _rate_and_group
        )
        return await _user(service, user_id, found, rated, 201 if created else 200)

    @app.get(
        "/v1/users/{user_id}", response_model=schemas.UserOut, responses=_problems(404, 422), summary="A stored user"
    )
    async def get_user(user_id: Name) -> Response:
        found, rated = await service.read_and(user_id, _rate_and_group, score=False)
        return await _user(service, user_id, found, rated)

    @app.delete(
        "/v1/users/{user_id}",
        status_code=204,
        response_class=Response,
        responses={202: {"model": DeletedOut, "description": "deleted, but bytes remain"}, **_problems(403, 404, 422)},
        summary="Delete a user: profile, ratings, and what was computed from them",
    )
    async def delete_user(user_id: Name, request: Request) -> Response:
        try:
            gone = await service.stored(lambda store: store.delete_user(user_id, _by(request)))
        finally:  # also if the store fails after the user was deleted
            service.forget(user_id)
        if gone is None:
            raise UnknownUser("there is no such user")
        return still_there() if gone.remains else Response(status_code=204)

    @app.post(
        "/v1/users/{user_id}/ratings",
        response_model=schemas.RatingsOut,
        responses=_problems(*WITH_BODY, 404, 422),
        summary="Add ratings; earlier ones of the same items are replaced",
    )
    async def add_ratings(user_id: Name, body: schemas.RatingsIn, request: Request) -> Response:
        ratings = body.as_ratings()
        await service.check(NewUser({}, ratings))
        written = await service.stored(lambda store: store.add_ratings(user_id, ratings, _by(request)))
        return JSONResponse(
            {"id": user_id, "ratings": written.ratings}
        )  # reading again might answer 503 to a stored rating

    @app.delete(
        "/v1/users/{user_id}/ratings/{item:path}",
        status_code=204,
        response_class=Response,
        responses=_problems(403, 404, 422),
        summary="Remove a rating",
    )
    async def remove_rating(user_id: Name, item: ItemName, request: Request) -> Response:
        if not await service.stored(lambda store: store.remove_rating(user_id, item, _by(request))):
            detail, expected = "the user has not rated this item", "an item they have rated"
            raise Problem(404, detail, kind="not-rated", field="item", value=item, expected=expected)
        return Response(status_code=204)


def _by(request: Request) -> str:
    """Who is named in the audit log: the key that opened this request."""
    return str(request.scope.get(KEY_NAME, NOBODY))


def _rate_and_group(user: User) -> tuple[float, str | None]:
    return user.rate, user.group


async def _user(
    service: Service, name: str, found: StoredUser, rated: tuple[float, str | None], status: int = 200
) -> Response:
    def render() -> Response:
        ratings = [
            {"item": r.item, "title": service.title(r.item), "value": r.value, "context": dict(r.context)}
            for r in found.ratings
        ]
        answer = {"id": name, "profile": found.profile, "ratings": ratings, "rate": rated[0], "group": rated[1]}
        return JSONResponse({**answer, "unknown": service.unknown(found.profile)}, status)

    return await service.apart(render)


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

        await service.check(NewUser(), among or ())
        answer = await service.of_stored(user_id, finish, explaining if why else listing)
        return JSONResponse({"user": user_id, **answer})

    @app.get(
        "/v1/users/{user_id}/predictions",
        response_model=schemas.PredictionsOut,
        responses=_problems(404, 422),
        summary="Predictions for some items",
    )
    async def get_predictions(user_id: Name, item: Named) -> Response:
        await service.check(NewUser(), item)
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
        await service.check(NewUser(), skip or ())
        asked = await service.of_stored(user_id, lambda user: user.next_question(exclude=skip or ()), asking)
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
        RECOMMEND,
        response_model=schemas.RecommendOut,
        responses=_problems(*WITH_BODY, 422),
        summary="The best items for a user who is not stored",
    )
    async def recommend(body: schemas.RecommendIn) -> Response:
        new_user = await service.check(NewUser(body.profile, body.as_ratings()), body.among or ())

        def finish(user: User) -> dict[str, Any]:
            return recommendations(user, body.n, body.why, body.among, exclude_seen=body.exclude_seen, by=body.by)

        return JSONResponse(await service.of_new_user(new_user, finish, explaining if body.why else listing))


def _add_model(app: FastAPI, service: Service, run: Run) -> None:
    predictor, target = service.predictor, run.settings.data_schema.target
    found = predictor.measured

    @app.get("/v1/items", response_model=schemas.ItemsOut, responses=_problems(422), summary="Search the catalogue")
    async def get_items(
        q: Annotated[str, Query(max_length=schemas.ID_LENGTH, description="Words of a title, or an id.")] = "",
        limit: Annotated[int, Query(ge=1, le=schemas.MAX_ITEMS)] = 20,
    ) -> Response:
        return JSONResponse({"items": await service.apart(lambda: service.search(q, limit))})

    model = {
        "method": run.settings.method,
        "target": {"kind": target.kind, "low": target.low, "high": target.high, "step": target.step},
        "items": len(predictor.catalogue),
        "index": found and {"candidates": found.candidates, "recall": found.recall},
        "fields": [
            {"name": field.name, "kind": str(field.kind), "values": list(field.values[:VALUES_SHOWN])}
            for field in predictor.fields
        ],
        "by": list(predictor.orders),
        "rate": predictor.rate_label,
    }

    @app.get("/v1/model", response_model=schemas.ModelOut, responses=_problems(), summary="The model in use")
    async def get_model() -> Response:
        return JSONResponse(model)


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=schemas.StateOut, responses=_problems(), summary="Whether the process is alive")
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
    details = {404: "there is nothing at this path"}
    return Problem(error.status_code, details.get(error.status_code, error.detail), headers=error.headers)
