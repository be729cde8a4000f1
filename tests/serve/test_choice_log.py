"""The most common log there is, user, item and time, from a data frame to a served answer."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest

import commands
import paml
from serve.serving import Server
from serve.visiting import Visit


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Two groups of users, each with items of its own."""
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{2 * item + user % 2}", 1_600_000_000 + int(rng.integers(10**7)))
        for user in range(80)
        for item in rng.choice(15, 9, replace=False)
    ]
    return pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")


@pytest.fixture(scope="module")
def trained(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> paml.Run:
    folder = tmp_path_factory.mktemp("log")
    data = paml.prepare(interactions=log, out=folder / "data")
    assert data.schema == paml.Dataset.open(data.path).schema
    assert (data.schema.user, data.schema.item, data.schema.target.kind) == ((), (), "choice")
    said = " ".join(data.manifest.notes)
    assert "no profiles: the learning rate alpha(h) is then the same for all users" in said
    assert "no item fields: what is learned about an item comes from its rows alone" in said
    return paml.train(data, out=folder / "run", epochs=4, ensemble_size=1, item_embedding=8, outer_rate=0.02)


@pytest.fixture(scope="module")
def server(trained: paml.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    started = Server(trained.path, folder / "log", "--store", f"sqlite:///{folder / 'users.sqlite'}", "--port", "0")
    yield started.ready()
    assert started.stop() == 0, started.log


def test_a_log_of_users_items_and_times_becomes_a_served_answer(server: Server, trained: paml.Run) -> None:
    with server.client() as client:
        model = client.get("/v1/model").json()
        assert model["target"] == {"kind": "choice", "low": 0, "high": 1, "step": 1}
        assert (model["fields"], model["by"]) == ([], ["preference", "choice"])
        assert client.put("/v1/users/anna", json={"profile": {}}).status_code == 201
        known = ["i1", "i3", "i5", "i7"]
        stored = client.post("/v1/users/anna/ratings", json={"ratings": [{"item": one, "value": 1} for one in known]})
        assert stored.json() == {"id": "anna", "ratings": 4}
        found = client.get("/v1/users/anna/recommendations", params={"n": 5, "why": 1}).json()["items"]
        wanted = trained.adapt(ratings=dict.fromkeys(known, 1)).recommend(5)
        assert [one["item"] for one in found] == [one.item for one in wanted]
        assert all(int(one["item"][1:]) % 2 == 1 for one in found)  # what others of the same group chose
        assert {one["because"][0]["item"] for one in found} <= set(known)
        assert all(one["rating"] is None and 0 < one["chance"] < 1 for one in found)
        assert client.get("/v1/users/anna/next-question").json()["item"] not in known
        assert client.get("/v1/users/anna/rate-profile").status_code == 200
        refused = client.post("/v1/users/anna/ratings", json={"ratings": [{"item": "i9", "value": 0}]})
        assert refused.status_code == 422
        assert refused.json()["expected"] == "1, for what the user chose"
        predicted = client.get("/v1/users/anna/predictions", params={"item": ["i9"]})
        assert (predicted.status_code, "only ranks" in predicted.json()["detail"]) == (422, True)


def test_the_page_asks_what_somebody_chose(browser: Any, server: Server) -> None:
    visit = Visit(browser, server.url).ready()
    page = visit.page
    assert visit.text("h1") == "Name three that you chose, and the list changes."
    assert visit.text("#question-title").startswith("Have you chosen ")
    visit.until(lambda: page.locator("#question .choice label").click())
    assert visit.text("#basis") == "from 1 choice"
    assert [rating["value"] for rating in visit.ask()["ratings"]] == [1]
    page.locator("#results .choice input:not(:checked)").first.focus()
    visit.until(lambda: page.keyboard.press("Enter"))
    assert len(visit.ask()["ratings"]) == 2
    assert visit.text("#own-title") == "Your choices"
    assert page.locator("#items .stars").count() == 0
    visit.until(lambda: page.get_by_role("button", name="Remove the choice of").first.click())
    assert len(visit.ask()["ratings"]) == 1
    assert visit.complaints == []
    visit.context.close()


def test_the_command_line_recommends_too(trained: paml.Run) -> None:
    done = commands.run("recommend", trained.path, "--rate", "i1=1", "-n", 3, "--json")
    assert done.returncode == 0
    wanted = trained.adapt(ratings={"i1": 1}).recommend(3)
    assert [one["item"] for one in json.loads(done.stdout)["items"]] == [one.item for one in wanted]
    refused = commands.run("recommend", trained.path, "--rate", "i1=0")
    assert (refused.returncode, "has the strength 0.0" in refused.stderr) == (1, True)
