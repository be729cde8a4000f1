"""What the page says of rates, reasons and profiles, and what it does with the keyboard, in a real browser."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import paml
from serve.serving import Server
from serve.visiting import Visit

RunOf = Callable[[str, str], paml.Run]


@pytest.fixture(scope="module")
def personal(run_of: RunOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose method gives users clearly different rates."""
    folder = tmp_path_factory.mktemp("personal")
    store = f"sqlite:///{folder / 'users.sqlite'}"
    server = Server(run_of("click", "reg_paml").path, folder / "log", "--store", store, "--rate", "0")
    yield server.ready()
    server.stop()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    here = Visit(browser, server.url).ready()
    yield here
    here.leave()


def test_the_rate_among_all_in_a_drawing_and_in_words(browser: Any, personal: Server) -> None:
    visit = Visit(browser, personal.url).ready()
    page = visit.page
    page.wait_for_selector("#rate figure svg")
    rates = visit.ask("/rate-profile")
    assert not rates["equal"]
    users = sum(rates["major"]) + sum(rates["minor"])
    assert f"of {users} users" in visit.text("#rate-text")
    assert visit.text("#rate-title") == "Your learning rate"
    bars = page.locator("#rate figure svg .major rect").count()
    assert bars == sum(count > 0 for count in rates["major"])
    label = page.locator("#rate figure svg").get_attribute("aria-label")
    assert label.startswith("Histogram of each user's learning rate")
    ticks = page.locator("#rate figure svg > text:not(.own)").all_text_contents()
    assert len(set(ticks)) == len(ticks) == 5
    page.get_by_text("As a table").click()
    cells = page.locator("#rate tbody td").all_inner_texts()
    assert [int(cell) for cell in cells[::2]] == rates["major"]
    assert [int(cell) for cell in cells[1::2]] == rates["minor"]
    visit.leave()


@pytest.mark.parametrize(
    ("percentile", "words"), [(0.2, "lower than that of nearly all"), (61.5, "higher than that of 62%")]
)
def test_ticks_of_close_rates_differ_and_nobody_is_above_0_percent(visit: Visit, percentile: float, words: str) -> None:
    """By a visitor whose service answers with rates that are close together."""
    edges = [0.0985 + 0.00015 * k for k in range(21)]
    counts = [5] * 20
    answer = {
        "rate": 0.0986,
        "percentile": percentile,
        "group": None,
        "edges": edges,
        "major": counts,
        "minor": counts,
        "similar": {"major": 7, "minor": 3},
        "equal": False,
    }
    visit.page.route("**/rate-profile", lambda route: route.fulfill(json=answer))
    visit.page.reload()
    visit.ready()
    visit.page.wait_for_selector("#rate figure svg")
    ticks = visit.page.locator("#rate figure svg > text:not(.own)").all_text_contents()
    assert len(set(ticks)) == 5
    assert words in visit.text("#rate-text")


def test_equal_rates_are_said_to_be_equal_and_not_drawn(browser: Any, run_of: RunOf, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'users.sqlite'}"
    server = Server(run_of("rating", "melu").path, tmp_path / "log", "--store", store).ready()
    visit = Visit(browser, server.url).ready()
    visit.page.wait_for_selector("#rate-text strong")
    assert visit.ask("/rate-profile")["equal"]
    assert "practically the same for everyone" in visit.text("#rate-text")
    assert visit.page.locator("#rate figure svg").count() == 0
    visit.leave()
    assert server.stop() == 0


def test_a_variance_is_not_called_a_learning_rate(visit: Visit) -> None:
    visit.page.wait_for_selector("#rate-text strong")
    assert visit.text("#rate-title") == "Your prior variance"
    assert "learning rate" not in visit.text("#rate")


def test_a_profile_value_that_the_model_does_not_know_is_said(visit: Visit) -> None:
    age = visit.page.get_by_label("Zip")
    visit.until(lambda: (age.fill("abc"), age.press("Tab")))
    note = visit.page.locator("#profile .unknown:visible")
    assert note.all_inner_texts() == ["The model does not know “abc”: it counts as not given."]
    assert visit.text("#basis") == "nothing is known about you yet"
    assert visit.ask()["unknown"] == ["zip"]
    visit.page.reload()
    visit.ready()
    assert note.count() == 1
    known = visit.page.locator("#profile-zip-values option").first.get_attribute("value")
    visit.until(lambda: (age.fill(known), age.press("Tab")))
    assert note.count() == 0
    assert visit.text("#basis") == "from your profile"


def test_titles_have_reasons_of_their_own(visit: Visit) -> None:
    for value in (5, 2, 4, 5, 1, 4):
        visit.rate("#question", value)
    items = visit.ask("/recommendations?n=10&why=5")["items"]
    strongest = [next(r["title"] for r in entry["because"] if r["effect"] > 0) for entry in items]
    shown = visit.page.locator("#items > li summary q").all_inner_texts()
    assert len(shown) == 10
    most = max(shown.count(title) for title in set(shown))
    assert most <= 5
    assert most <= max(strongest.count(title) for title in set(strongest))
    for title, entry in zip(shown, items, strict=True):
        assert title in {reason["title"] for reason in entry["because"] if reason["effect"] > 0}


def test_space_takes_a_star_and_sends_nothing_before_it_is_confirmed(visit: Visit) -> None:
    page, keys = visit.page, visit.page.keyboard
    page.locator("#question input").first.focus()
    keys.press("Space")
    assert page.locator("#question .full").count() == 1
    assert visit.ask()["ratings"] == []
    keys.press("Tab")  # left alone: nothing was meant
    assert page.locator("#question .full").count() == 0
    assert visit.ask()["ratings"] == []
    page.locator("#question input").first.focus()
    keys.press("Space")
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    assert visit.ask()["ratings"] == []
    visit.until(lambda: keys.press("Space"))
    assert [rating["value"] for rating in visit.ask()["ratings"]] == [3]


def test_space_in_the_list_of_titles_does_not_store_when_left(visit: Visit) -> None:
    page, keys = visit.page, visit.page.keyboard
    first = page.locator("#results fieldset").first
    first.locator("input").first.focus()
    keys.press("Space")
    keys.press("Tab")
    assert first.locator(".full").count() == 0
    assert visit.ask()["ratings"] == []
    first.locator("input").first.focus()
    keys.press("Space")
    visit.until(lambda: keys.press("Enter"))
    assert [rating["value"] for rating in visit.ask()["ratings"]] == [1]
    assert re.search(r"1 of 5", visit.text("#news"))


@pytest.mark.parametrize("values", [["a", "b"], []])
@pytest.mark.parametrize("given", ["a", None, ["a"]])
def test_a_field_of_several_values_shows_whatever_is_stored(visit: Visit, given: object, values: list[str]) -> None:
    """A program may have stored one text, or null, which the service takes."""
    visit.seeing("/v1/model", fields=[{"name": "tags", "kind": "multi", "values": values}])
    visit.seeing(f"/v1/users/{visit.id}", profile={"tags": given})
    visit.page.reload()
    visit.ready()
    shown = "e => e.multiple ? [...e.selectedOptions].map(o => o.value) : e.value.split(', ').filter(Boolean)"
    assert visit.page.get_by_label("Tags").evaluate(shown) == (["a"] if given else [])


def test_ratings_are_shown_and_said_as_they_were_given(visit: Visit) -> None:
    """In steps of 0.1 (0.1 + 0.2 is not 0.3), in single precision, and with more than three digits."""
    shown = "[...document.querySelectorAll('#ratings fieldset')].map(f => f.querySelectorAll('label.full').length)"
    rated = [{"item": str(k), "title": f"Film {k}", "context": {}} for k in range(3)]
    stored = [{**entry, "value": value} for entry, value in zip(rated, (0.3, 0.7, 0.699999988079071), strict=True)]
    visit.seeing(f"/v1/users/{visit.id}", ratings=stored)
    visit.on_scale(0, 1, 0.1)
    assert visit.page.evaluate(shown) == [8, 8, 4]  # the newest first
    checked = visit.page.locator("#ratings input:checked")
    assert [float(one.get_attribute("value")) for one in checked.all()] == [0.7, 0.7, 0.3]
    assert visit.page.locator("#question label").nth(3).get_attribute("title") == "0.3 of 1"
    scores = visit.page.locator(".score .number").all_inner_texts()
    assert len(scores) > 5
    assert all(re.fullmatch(r"\d\.\d\d", one) for one in scores)  # one decimal would be a step
    visit.page.route("**/ratings", lambda route: route.fulfill(json={"id": visit.id, "ratings": 1}))
    visit.on_scale(0, 2000, 0.25)
    typed = visit.page.locator("#question input")
    typed.fill("1010.25")
    visit.until(lambda: typed.press("Enter"))
    assert "1,010.25 of 2,000:" in visit.text("#news")


def test_arrow_keys_choose_a_number_and_send_nothing(visit: Visit) -> None:
    """On a scale with more values than there is room for stars."""
    page, keys, sent = visit.page, visit.page.keyboard, []

    def store(route: Any) -> None:
        sent.append(route.request.post_data_json["ratings"][0]["value"])
        route.fulfill(json={"id": visit.id, "ratings": len(sent)})

    page.route("**/ratings", store)
    visit.on_scale(0, 20, 0.25)
    listed, asked = page.locator("#results input").nth(3), page.locator("#question input")
    for field in (listed, asked):
        field.focus()
        for _ in range(3):
            keys.press("ArrowUp")
    page.wait_for_function("() => document.querySelector('#news').textContent !== ''")
    assert sent == [0.75]  # by leaving the list
    assert asked.input_value() == "0.75"
    assert "Enter sends" in visit.text("#question .keys")
    page.get_by_role("button", name="Not seen").focus()
    assert asked.input_value() == "", "nothing was meant"
    asked.fill("7.25")
    visit.until(lambda: keys.press("Enter"))
    assert sent == [0.75, 7.25]
    listed.fill("0.750")
    keys.press("Tab")  # what is stored already is not sent again
    listed.fill("3.1")
    keys.press("Enter")  # no level of the scale
    listed.fill("3.25")
    visit.until(lambda: keys.press("Enter"))
    listed.blur()
    assert sent == [0.75, 7.25, 3.25]
