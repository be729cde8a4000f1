"""Pictures of the page for the documentation, of a running service: python -m benchmarks.pictures URL 'TITLE=VALUE' ...

Each title is searched and rated as a visitor does it; docs/page-wide.png and docs/page-phone.png show what comes of it.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent.parent / "docs"
VIEWS: dict[str, dict[str, Any]] = {
    "wide": {"viewport": {"width": 1280, "height": 1000}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "device_scale_factor": 2},
}


def main(url: str, ratings: list[tuple[str, str]]) -> None:
    """Rate the titles at `url` once per view, and take its picture."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, view in VIEWS.items():
            page = browser.new_page(**view)
            page.goto(url)
            page.wait_for_selector("#results > li")
            for title, value in ratings:
                _rate(page, title, value)
            page.locator("#items summary").first.click()
            page.fill("#search", "")
            page.evaluate("document.activeElement.blur(); scrollTo({ top: 0, behavior: 'instant' })")
            page.mouse.move(0, 0)
            page.wait_for_timeout(1500)  # until everything has come to rest
            page.screenshot(path=DOCS / f"page-{name}.png", full_page=name == "wide")
            print(DOCS / f"page-{name}.png")
        browser.close()


def _rate(page: Any, title: str, value: str) -> None:
    page.fill("#search", title)
    row = page.locator("#results > li").filter(has_text=title).first
    row.wait_for()
    page.evaluate("document.querySelector('#news').textContent = ''")
    row.locator(f"label:has(input[value='{value}'])").click()
    page.wait_for_function("() => document.querySelector('#news').textContent !== ''")


if __name__ == "__main__":
    pairs = [argument.rpartition("=") for argument in sys.argv[2:]]
    main(sys.argv[1], [(title, value) for title, _, value in pairs])
