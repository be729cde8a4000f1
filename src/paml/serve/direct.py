"""The request that the model is asked most, without FastAPI's layers: they cost more than its parsing and its answer.

FastAPI has the route all the same: it describes it, and it says what is wrong with a body that cannot be used.
"""

from typing import get_type_hints

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from paml.serve.limits import replayed


class Direct:
    """Calls the endpoint of one route, which takes a JSON `body` and nothing else; all others are the application's.

    It stands behind a `Guard`, which has read the body and answers what an endpoint raises.
    """

    def __init__(self, app: FastAPI, path: str) -> None:
        self._app, self._path = app, path
        self._route = next(route for route in app.routes if isinstance(route, APIRoute) and route.path == path)
        self._body = get_type_hints(self._route.endpoint)["body"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (or pass on the application's start and end)."""
        if scope["type"] != "http" or scope["path"] != self._path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        content = (await receive())["body"]
        try:
            body = self._body.model_validate_json(content)
        except ValidationError:
            await self._app(scope, replayed(content, receive), send)
            return
        scope["route"] = self._route
        response = await self._route.endpoint(body)
        await response(scope, receive, send)
