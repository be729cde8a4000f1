"""The whole application in this process: quicker to start than a server, and everything but the socket is real."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

import paml
from paml.serve.server import Address, Options, create_guarded
from paml.serve.service import Service
from paml.serve.store.store import Store
from waiting import PATIENCE


class Inside(httpx.BaseTransport):
    """Hands requests to an application whose event loop runs in a thread of its own."""

    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._answer(request), self._loop).result(PATIENCE)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._transport.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


@contextmanager
def serving(run: paml.Run, url: str, address: Address | None = None, **limits: int) -> Iterator[httpx.Client]:
    """A client of the application; the store is closed at its end."""
    service = Service(run.predictor, Store.open(url, **limits))
    try:
        guarded = create_guarded(run, service, Options(address or Address()))
        with httpx.Client(transport=Inside(guarded), base_url="http://localhost") as client:
            yield client
    finally:
        service.close()
