"""The page in a real browser, before a real server: by mouse, by keyboard, at every width, and when things fail."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import paml
from paml.serve.store.store import Store
from report.test_page import outline
from serve.serving import Server
from serve.visiting import Visit
from waiting import PATIENCE

PAGE = Path(paml.__file__).parent / "serve" / "page"
PHONE = (390, 844)
CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()


@pytest.fixture(scope="module")
def offers(click_world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("offers") / "run"
    return paml.train(click_world, "ridge", out=out, settings={"epochs": 1, "ensemble_size": 1}).path


@contextmanager
def serving(run: Path, folder: Path, *options: str) -> Iterator[Server]:
    """A service whose users are kept in `folder`."""
    server = Server(run, folder / "log", "--store", f"sqlite:///{folder / 'users.sqlite'}", *options)
    try:
        yield server.ready()
    finally:
        server.stop()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    here = Visit(browser, server.url).ready()
    yield here
    here.leave()


def test_the_page_is_sound_and_loads_nothing_from_elsewhere() -> None:
    text = (PAGE / "index.html").read_text()
    elements = outline(text).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [word for _, a in elements for key in ("aria-labelledby", "for") for word in str(a.get(key, "")).split()]
    assert set(named) <= set(ids)
    assert "style" not in {tag for tag, _ in elements}
    assert not [key for _, a in elements for key in a if key == "style" or key.startswith("on")]
    assert [a for tag, a in elements if tag == "script"] == [{"type": "module", "src": "static/app.js"}]
    for file in PAGE.iterdir():
        content = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|eval\(", content), file
        assert len(content.splitlines()) <= 400
        assert file.suffix != ".js" or max(map(len, content.splitlines())) <= 120, file


def test_a_new_user_finds_everything_at_once(visit: Visit) -> None:
    page = visit.page
    assert len(visit.shown) == 10
    assert visit.shown == [entry["item"] for entry in visit.ask("/recommendations?n=10")["items"]]
    assert re.fullmatch(r"Have you seen .+\?", visit.text("#question-title"))
    assert visit.text("#basis") == "nothing is known about you yet"
    model = httpx.get(f"{visit.url}/v1/model", timeout=PATIENCE).json()
    labels = page.locator("#profile label").all_inner_texts()
    assert [label.lower() for label in labels] == [field["name"] for field in model["fields"]]
    genders = page.get_by_label("Gender").locator("option").all_inner_texts()
    assert set(genders) == {"not given", *model["fields"][0]["values"]}
    assert not page.locator("#own").is_visible()


def test_a_rating_changes_the_list_and_a_reload_finds_it(visit: Visit) -> None:
    before = visit.shown
    first = visit.text("#question-title")
    visit.rate("#question", 1)
    visit.rate("#question", 5)
    assert visit.shown != before
    assert visit.text("#question-title") != first
    assert visit.text("#basis") == "from 2 ratings"
    assert re.match(r".+, 5 of 5: ", visit.text("#news"))
    stored = {rating["item"]: rating["value"] for rating in visit.ask()["ratings"]}
    assert sorted(stored.values()) == [1, 5]
    assert visit.shown == [entry["item"] for entry in visit.ask("/recommendations?n=10")["items"]]
    after = visit.shown
    visit.page.reload()
    visit.ready()
    assert visit.shown == after
    rows = visit.page.locator("#ratings > li")
    assert rows.count() == 2
    checked = "r => [r.dataset.rated, Number(r.querySelector(':checked').value)]"
    assert dict(visit.page.evaluate(f"[...document.querySelectorAll('#ratings > li')].map({checked})")) == stored


def test_titles_are_found_rated_changed_and_removed(visit: Visit) -> None:
    page = visit.page
    page.fill("#search", "FILM 12")
    page.wait_for_selector("#results > li:has-text('Film 12')")
    visit.rate("#results > li:has-text('Film 12')", 4)
    assert page.locator("#ratings > li").count() == 1
    visit.rate("#ratings", 2)
    assert [rating["value"] for rating in visit.ask()["ratings"]] == [2]
    item = visit.ask()["ratings"][0]["item"]
    full = page.locator(f"#results fieldset[data-item='{item}'] label.full")
    assert full.count() == 2  # the same stars, wherever the title is shown
    visit.until(lambda: page.get_by_role("button", name=re.compile("Remove the rating of Film 12")).click())
    assert visit.ask()["ratings"] == []
    assert full.count() == 0
    page.fill("#search", "no such <b>title</b>")
    page.wait_for_function("() => document.querySelector('#found').innerText.includes('<b>title</b>')")
    assert "No title matches" in visit.text("#found")


def test_reasons_are_those_of_the_service(visit: Visit) -> None:
    for value in (5, 2, 4):
        visit.rate("#question", value)
    top = visit.ask("/recommendations?n=10&why=3")["items"][0]
    row = visit.page.locator("#items > li").first
    row.locator("summary").click()
    shown = row.locator(".reasons li")
    assert shown.count() == len(top["because"]) == 3
    for k, reason in enumerate(top["because"]):
        assert reason["title"] in shown.nth(k).inner_text()
        assert f"{abs(reason['effect']):.2f}" in shown.nth(k).inner_text()
    visit.rate("#items > li:first-child", 3)  # seen already: it leaves the list
    assert top["item"] not in visit.shown
    assert visit.page.evaluate("document.activeElement.id") == "top"


def test_the_profile_is_stored_and_counts(visit: Visit) -> None:
    age = visit.page.get_by_label("Age").locator("option").nth(1).inner_text()
    visit.until(lambda: visit.page.get_by_label("Age").select_option(age))
    assert visit.ask()["profile"] == {"age": age}
    assert visit.text("#basis") == "from your profile"
    visit.page.reload()
    visit.ready()
    assert visit.page.get_by_label("Age").input_value() == age
    visit.until(lambda: visit.page.get_by_label("Age").select_option(""))
    assert visit.ask()["profile"] == {}


def test_what_was_not_seen_is_not_asked_again(visit: Visit) -> None:
    asked = visit.text("#question-title")
    visit.page.get_by_role("button", name="Not seen").click()
    visit.page.wait_for_function("q => document.querySelector('#question-title').innerText !== q", arg=asked)
    second = visit.text("#question-title")
    visit.page.reload()
    visit.ready()
    assert visit.text("#question-title") == second
    visit.page.evaluate("localStorage.setItem('paml-skipped', JSON.stringify(['of another server']))")
    visit.page.reload()
    visit.ready()
    assert visit.text("#question-title") == asked
    known = visit.ask("/next-question")["item"]
    visit.page.evaluate("all => localStorage.setItem('paml-skipped', JSON.stringify(all))", [known, "x" * 300])
    visit.page.reload()
    visit.ready()
    assert visit.text("#question-title") == second, "what this server knows is still skipped"
    assert visit.page.evaluate("JSON.parse(localStorage.getItem('paml-skipped'))") == [known]
    visit.complaints.clear()  # the answers that said so


def test_by_keyboard_alone(visit: Visit) -> None:
    page, keys = visit.page, visit.page.keyboard

    def focused() -> str:
        return str(page.evaluate("document.activeElement.id || document.activeElement.outerHTML.slice(0, 200)"))

    keys.press("Tab")
    assert 'class="skip"' in focused()
    assert page.locator(".skip").bounding_box()["y"] >= 0
    keys.press("Tab")  # the first star of the question
    outline_width = page.evaluate("getComputedStyle(document.activeElement.parentElement).outlineWidth")
    assert outline_width == "2px"
    for _ in range(3):
        keys.press("ArrowRight")  # passes over 2 and 3: nothing is sent yet
    assert visit.ask()["ratings"] == []
    visit.until(lambda: keys.press("Enter"))
    assert [rating["value"] for rating in visit.ask()["ratings"]] == [4]
    assert focused() == "question-title"
    keys.press("Tab")
    visit.until(lambda: keys.press("2"))
    assert sorted(rating["value"] for rating in visit.ask()["ratings"]) == [2, 4]
    keys.press("Tab")
    keys.press("Tab")
    asked = visit.text("#question-title")
    keys.press("Enter")  # not seen
    page.wait_for_function("q => document.querySelector('#question-title').innerText !== q", arg=asked)
    for _ in range(4):
        keys.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    keys.press("Enter")
    assert page.locator("#items details[open]").count() == 1
    for _ in range(40):
        if focused() == "search":
            break
        keys.press("Tab")
    keys.type("film 7")
    page.wait_for_function("() => /found|many/.test(document.querySelector('#found').innerText)")
    keys.press("Tab")
    visit.until(lambda: keys.press("5"))
    for _ in range(60):
        keys.press("Tab")
        if focused() == "forget":
            break
    keys.press("Enter")
    keys.press("Escape")
    assert len(visit.ask()["ratings"]) == 3
    assert focused() == "forget"


def test_every_control_has_a_name(visit: Visit) -> None:
    visit.rate("#question", 4)
    page = visit.page
    for role in ("radio", "button", "combobox", "searchbox", "group", "textbox"):
        for control in page.get_by_role(role).all():
            assert page.get_by_role(role, name=re.compile(r"\w")).count() > 0
            assert re.search(r"\w", control.aria_snapshot()), role
    title = visit.ask("/next-question")["title"]
    group = page.get_by_role("group", name=f"Rate {title}")
    assert group.first.get_by_role("radio").count() == 5
    assert group.first.get_by_role("radio", name="4 of 5").count() == 1
    assert page.locator("#news").get_attribute("role") == "status"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_every_width_and_light_and_dark(browser: Any, server: Server, width: int, scheme: str) -> None:
    here = Visit(browser, server.url, (width, 844), color_scheme=scheme).ready()
    for value in (5, 1, 4):
        here.rate("#question", value)
    here.page.locator("#items summary").first.click()
    here.page.get_by_text("As a table").click()
    assert here.page.evaluate("document.documentElement.scrollWidth") <= width
    inside = (
        "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert here.page.evaluate(inside) == 0
    paper = here.page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(paper) < 150) == (scheme == "dark")
    here.page.wait_for_function("() => document.getAnimations().length === 0")
    assert here.page.evaluate(CONTRASTS) == []
    here.leave()


@pytest.mark.parametrize(
    ("high", "width"), [(5, 320), (5, 1280), (10, 320), (10, 360), (10, 390), (11, 320), (11, 1280)]
)
def test_a_finger_on_remove_removes_at_every_width(browser: Any, server: Server, high: int, width: int) -> None:
    here = Visit(browser, server.url, (width, 740), has_touch=True).ready()
    here.on_scale(1, high, 1)
    here.rate("#results", 3)
    remove = here.page.get_by_role("button", name=re.compile("Remove the rating"))
    remove.scroll_into_view_if_needed()
    box = remove.bounding_box()
    here.until(lambda: here.page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2))
    assert here.ask()["ratings"] == []
    assert here.page.evaluate("document.documentElement.scrollWidth") <= width
    here.leave()


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_rows_move_only_for_those_who_like_it(browser: Any, server: Server, motion: str) -> None:
    here = Visit(browser, server.url, reduced_motion=motion).ready()
    here.page.evaluate(
        "() => { window.moved = 0; const animate = Element.prototype.animate;"
        "Element.prototype.animate = function (...a) { window.moved += 1; return animate.apply(this, a); } }"
    )
    before = here.shown
    here.rate("#question", 1)
    here.rate("#question", 5)
    assert here.shown != before
    assert (here.page.evaluate("window.moved") > 0) == (motion == "no-preference")
    here.leave()


def test_forget_me(visit: Visit) -> None:
    fresh = visit.shown
    visit.rate("#question", 5)
    old = visit.id
    visit.page.get_by_role("button", name="Forget me").click()
    assert "1 rating" in visit.text("#farewell-text")
    visit.page.get_by_role("button", name="Keep it").click()
    assert len(visit.ask()["ratings"]) == 1
    visit.page.get_by_role("button", name="Forget me").click()
    visit.page.locator("#farewell").get_by_role("button", name="Forget me").click()
    visit.page.wait_for_function("() => document.querySelector('#news').innerText.includes('deleted')")
    assert httpx.get(f"{visit.url}/v1/users/{old}", timeout=PATIENCE).status_code == 404
    assert visit.id != old
    assert visit.ask()["ratings"] == []
    assert visit.shown == fresh
    assert not visit.page.locator("#own").is_visible()


def test_a_server_that_is_gone_is_reported_in_words_and_comes_back(
    browser: Any, trained: paml.Run, tmp_path: Path
) -> None:
    with serving(trained.path, tmp_path) as server:
        here = Visit(browser, server.url).ready()
        here.rate("#question", 4)
        server.stop()
        here.page.locator("#question input[value='2']").locator("xpath=..").click()
        here.page.wait_for_selector("#trouble:not([hidden])")
        assert "does not answer" in here.text("#trouble")
        assert here.page.locator("#question .full").count() == 0  # not stored, so not shown
        server.start()
        server.ready()
        here.until(lambda: here.page.get_by_role("button", name="Try again").click())
        assert not here.page.locator("#trouble").is_visible()
        assert sorted(rating["value"] for rating in here.ask()["ratings"]) == [2, 4]
    here.complaints.clear()  # the browser itself reports the connection that failed
    here.leave()


def test_an_answer_that_breaks_off_stops_no_later_rating(visit: Visit) -> None:
    visit.page.route("**/ratings", lambda route: route.fulfill(status=200, body='{"id": "'), times=1)
    visit.page.locator("#question input[value='2']").locator("xpath=..").click()
    visit.page.wait_for_selector("#trouble:not([hidden])")
    assert "does not answer" in visit.text("#trouble")
    visit.rate("#question", 4)
    assert [rating["value"] for rating in visit.ask()["ratings"]] == [4]


def test_a_visitor_whom_the_store_forgot_is_created_again(visit: Visit) -> None:
    assert httpx.delete(f"{visit.url}/v1/users/{visit.id}", timeout=PATIENCE).status_code == 204
    visit.rate("#question", 3)
    assert [rating["value"] for rating in visit.ask()["ratings"]] == [3]
    visit.complaints.clear()  # the 404 that said so


def test_titles_that_come_in_never_widen_the_page(browser: Any, server: Server) -> None:
    here = Visit(browser, server.url, PHONE).ready()
    here.page.evaluate(
        """() => {
            const animate = Element.prototype.animate;
            Element.prototype.animate = function (...how) {
                const moving = animate.apply(this, how);
                moving.pause(); // at its beginning, where a row is furthest out
                return moving;
            };
        }"""
    )
    for _ in range(9):
        here.rate("#question", 1)
        if here.page.locator("#items .new").count():
            break
    assert here.page.locator("#items .new").count()
    assert here.page.evaluate("document.getAnimations().some(each => each.playState === 'paused')")
    assert here.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    here.leave()


def test_a_key_is_asked_for_once(browser: Any, trained: paml.Run, tmp_path: Path) -> None:
    with closing(Store.open(f"sqlite:///{tmp_path / 'users.sqlite'}")) as store:
        key = store.add_key("visitors")
    with serving(trained.path, tmp_path) as server:
        here = Visit(browser, server.url)
        for secret, then in (("invalid", "#key[open]"), (key, "#items > li")):
            here.page.wait_for_selector("#key[open]")
            here.page.get_by_label("Key", exact=True).fill(secret)
            here.page.keyboard.press("Enter")
            here.page.wait_for_selector(then)
            if secret == "invalid":
                assert "not accepted" in here.text("#key-text")
        here.ready()
        here.complaints.clear()  # the browser itself reports answers of 401
        here.rate("#question", 5)
        here.page.reload()
        here.ready()
        assert not here.page.locator("#key").is_visible()
        assert here.page.evaluate("JSON.stringify(localStorage)").count(key) == 0
        here.leave()


def test_clicks_are_asked_for_as_clicks(browser: Any, offers: Path, tmp_path: Path) -> None:
    with serving(offers, tmp_path) as server:
        here = Visit(browser, server.url, PHONE).ready()
        assert here.text("#question-title").startswith("Would you click on Offer ")
        here.rate("#question", 0)
        here.rate("#question", 1)
        assert sorted(rating["value"] for rating in here.ask()["ratings"]) == [0, 1]
        assert re.fullmatch(r"\d+%", here.page.locator(".score .number").first.inner_text())
        assert here.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        here.leave()
