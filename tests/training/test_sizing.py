"""Settings by the size of the data: what the rules say, and how recipes use them."""

from dataclasses import replace
from pathlib import Path

import pytest

import paml
from paml.errors import SettingsError
from paml.training.recipe import Recipe, choice_recipe, load_recipe, recipe_for
from paml.training.sizing import CHOICE_RULES, EMBEDDED, RULES, DataSize

MOVIES = DataSize(users=3382, rows=299_550, items=3502, values={"year": 82})
BOOKS = DataSize(users=5470, rows=13_628, items=10_997, values={"year": 61, "publisher": 1599, "author": 5157})
SIZES = {"movies": MOVIES, "books": BOOKS, "embedded": EMBEDDED}


def by_rule(size: DataSize) -> dict[str, object]:
    return {name: rule(size) for name, rule in RULES.items()}


def test_rules_at_the_sizes_of_the_known_data_sets() -> None:
    """What had been found by hand for each of them: long vectors and little decay for films, the reverse for books."""
    movies, books, embedded = (by_rule(size) for size in (MOVIES, BOOKS, EMBEDDED))
    assert [part["item_embedding"] for part in (movies, books, embedded)] == [48, 4, 16]
    assert [part["prior_from_items"] for part in (movies, books, embedded)] == [48, 0, 16]
    assert [part["batch_size"] for part in (movies, books, embedded)] == [128, 128, 32]
    assert [part["affinity_fields"] for part in (movies, books, embedded)] == [(), ("publisher", "author"), ()]
    assert [part["user_bias_discount"] for part in (movies, books, embedded)][1] == 0
    assert movies["weight_decay"] < embedded["weight_decay"] < books["weight_decay"]  # type: ignore[operator]


@pytest.mark.parametrize("name", RULES)
def test_rules_hold_at_any_size(name: str) -> None:
    for users in (1, 30, 10**7):
        for rows in (users, 20 * users, 500 * users):
            for items in (1, 100, 10**6):
                value = RULES[name](DataSize(users, rows, items, {"author": max(items // 3, 1)}))
                Recipe.model_validate({name: value})


def test_fewer_ratings_shrink_harder() -> None:
    decays = [RULES["weight_decay"](replace(MOVIES, rows=rows)) for rows in (10**6, 10**5, 10**4, 10**3)]
    assert decays == sorted(decays)
    assert len(set(decays)) == 4
    assert RULES["weight_decay"](replace(BOOKS, items=10**6)) <= 0.05


def test_large_data_have_smaller_ensembles() -> None:
    assert RULES["ensemble_size"](MOVIES) == RULES["ensemble_size"](EMBEDDED) == 24
    assert RULES["ensemble_size"](BOOKS) == 16  # with affinities, networks are not merged
    assert RULES["ensemble_size"](replace(MOVIES, rows=2_000_000)) == 5


def test_large_logs_train_for_choice_in_hours_not_days() -> None:
    def part(size: DataSize) -> tuple[int, int]:
        found = choice_recipe("tuned", "melu", {}, "ridge", size)
        return found.epochs, found.ensemble_size

    assert part(MOVIES) == part(EMBEDDED) == (12, 4)
    assert part(BOOKS) == (12, 2)  # little to learn
    assert part(DataSize(users=40_000, rows=2_000_000, items=20_000)) == (4, 1)
    assert part(DataSize(users=150_000, rows=7_500_000, items=20_000)) == (1, 1)
    assert part(DataSize(users=10**7, rows=10**9, items=20_000)) == (1, 1)
    assert CHOICE_RULES["weight_decay"] is RULES["weight_decay"]


def test_the_size_is_that_of_training_users(world: paml.Dataset) -> None:
    size, rows = DataSize.of(world), world.interactions().collect()
    users = world.manifest.splits["train"][1]
    train = rows.filter(rows["user"] < users)
    assert (size.users, size.rows, size.items) == (users, len(train), train["item"].n_unique())
    assert set(size.values) == {"director"}
    assert size.without(["item.director", "user.age"]).values == {}


def test_auto_is_a_number_in_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('weight_decay = "auto"\nbatch_size = 8\n[source.ml-1m]\nbatch_size = "auto"\n')
    assert load_recipe(file, "ridge", {}, size=MOVIES).weight_decay == RULES["weight_decay"](MOVIES)
    assert load_recipe(file, "ridge", {}, size=MOVIES).batch_size == 8
    assert load_recipe(file, "ridge", {}, "ml-1m", size=MOVIES).batch_size == 128
    assert load_recipe(file, "ridge", {"weight_decay": 0.5, "batch_size": "auto"}, size=BOOKS) == Recipe(
        weight_decay=0.5, batch_size=128
    )


def test_excluded_fields_do_not_connect_items() -> None:
    overrides = {"affinity_fields": "auto", "exclude_fields": "item.author"}
    assert load_recipe("tuned", "ridge", overrides, size=BOOKS).affinity_fields == ("publisher",)


def test_settings_without_a_rule_are_not_automatic(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="setting 'patience' is 'auto'; expected a valid integer"):
        load_recipe("tuned", "ridge", {"patience": "auto"})
    file = tmp_path / "own.toml"
    file.write_text('[method.melu]\npatience = "auto"\n')
    with pytest.raises(SettingsError, match=r"own.toml: setting 'patience' is 'auto'"):
        load_recipe(file, "ridge", {})
    assert load_recipe("tuned", "ridge", {"head": "auto"}).head == "auto"


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_sources_that_differ_in_size_alone_have_the_same_recipe(size: DataSize) -> None:
    """The default method goes by the data's size and not by its name."""
    found = {
        load_recipe("tuned", "ridge", {}, source, size=size)
        for source in ("tables", "ml-1m", "bookcrossing", "synthetic")
    }
    assert len(found) == 1


def test_a_run_records_numbers(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, out=tmp_path / "run", epochs=1, ensemble_size=1)
    assert run.settings.recipe == recipe_for(world, "tuned", "ridge", {"epochs": 1, "ensemble_size": 1})
    assert run.settings.recipe.weight_decay == RULES["weight_decay"](DataSize.of(world))
    assert paml.load(run.path).settings.recipe == run.settings.recipe
