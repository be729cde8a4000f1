"""Somebody at the page, in a real browser."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from waiting import PATIENCE

WIDE = (1280, 900)


class Visit:
    """A visitor's own browser at the page, with everything it complained about."""

    def __init__(self, browser: Any, url: str, size: tuple[int, int] = WIDE, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        self.page.goto(url)

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.complaints.append(request.url)

    def ready(self) -> "Visit":
        self.page.wait_for_selector("#items > li")
        self.page.wait_for_selector("#results > li")
        return self

    def seeing(self, path: str, **changed: Any) -> None:
        """See the page of a service that answers this path in another way, from the next reload on."""
        answer = {**httpx.get(f"{self.url}{path}", timeout=PATIENCE).json(), **changed}
        self.page.route(f"**{path}", lambda route: route.fulfill(json=answer))

    def on_scale(self, low: float, high: float, step: float) -> None:
        """See the page of a service whose ratings have another scale."""
        self.seeing("/v1/model", target={"kind": "rating", "low": low, "high": high, "step": step})
        self.page.reload()
        self.ready()

    @property
    def id(self) -> str:
        return str(self.page.evaluate("localStorage.getItem('paml-visitor')"))

    @property
    def shown(self) -> list[str]:
        """Ids of the top ten."""
        found: list[str] = self.page.evaluate("[...document.querySelectorAll('#items > li')].map(r => r.dataset.item)")
        return found

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def ask(self, path: str = "") -> Any:
        """What the service itself says about this visitor."""
        answer = httpx.get(f"{self.url}/v1/users/{self.id}{path}", timeout=PATIENCE)
        assert answer.status_code == 200
        return answer.json()

    def until(self, happens: Callable[[], None]) -> None:
        """Do something that changes the list, and wait until the page says so."""
        self.page.evaluate("document.querySelector('#news').textContent = ''")
        happens()
        self.page.wait_for_function("() => document.querySelector('#news').textContent !== ''")

    def rate(self, within: str, value: int) -> None:
        star = self.page.locator(f"{within} input[value='{value}']").first
        self.until(lambda: star.locator("xpath=..").click())

    def leave(self) -> None:
        assert self.complaints == []
        self.context.close()
