"""Settings of the two parts of a run: what is for both, `choice.NAME`, tables for choice, and clear errors."""

from pathlib import Path

import pytest

import paml
from commands import run as command
from paml.errors import SettingsError
from paml.training.recipe import CHOICE, SHARED, Recipe, choice_recipe, load_recipe, recipe_for, recipe_names
from paml.training.sizing import DataSize

OWN = """
epochs = 3
outer_rate = 1e-3
hidden = [8]

[target.choice]
head = "choice"
network = "factors"
hidden = []
item_embedding = 4
epochs = 5

[target.choice.method.melu]
inner_rate = 0.125

[method.melu]
inner_rate = 0.25

[source.ml-1m]
epochs = 9
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def of_choice(recipe: str | Path, method: str, **overrides: object) -> Recipe:
    return load_recipe(recipe, method, overrides, "ml-1m", CHOICE)


def test_tables_for_choice(file: Path) -> None:
    """A table of the method within that for choice overrides all; the data set's is about ratings."""
    assert of_choice(file, "paml").epochs == 5
    assert of_choice(file, "melu").inner_rate == 0.125
    assert load_recipe(file, "melu", {}, "ml-1m").inner_rate == 0.25
    assert load_recipe(file, "melu", {}, "ml-1m").epochs == 9
    assert of_choice(file, "melu").outer_rate == 1e-3  # settings at the top are for both
    assert of_choice(file, "melu").head == "choice"
    assert load_recipe(file, "melu", {}).head == "auto"


@pytest.mark.parametrize("method", ["melu", "ridge"])
def test_a_recipe_without_such_tables_uses_those_of_tuned(method: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("epochs = 3\nhidden = [8]\n[target.click]\nepochs = 4\n")
    tuned = of_choice("tuned", method)
    assert of_choice(path, method) == of_choice("paper", method) == tuned
    assert (tuned.head, tuned.network, tuned.hidden, tuned.choice_part) == ("choice", "factors", (), False)
    assert load_recipe(path, method, {}).epochs == 3
    path.write_text('head = "choice"\nnetwork = "factors"\nhidden = []\nitem_embedding = 4\nepochs = 3\n')
    assert of_choice(path, method).epochs == 3  # this one is about choice


def test_the_tuned_table_of_a_method_within_choice() -> None:
    melu, ridge = of_choice("tuned", "melu"), of_choice("tuned", "ridge")
    assert ridge.inner_steps != melu.inner_steps
    assert ridge.taste_dropout == melu.taste_dropout > 0


def test_settings_of_one_part_and_of_both() -> None:
    given = {"epochs": 2, "inner_rate": 0.5, "choice.inner_rate": 0.75, "choice.batch_size": 16, "batch_size": 8}
    rating, choice = load_recipe("tuned", "melu", given), load_recipe("tuned", "melu", given, target=CHOICE)
    plain = of_choice("tuned", "melu")
    assert (rating.epochs, rating.inner_rate, rating.batch_size) == (2, 0.5, 8)
    assert (choice.epochs, choice.inner_rate, choice.batch_size) == (2, 0.75, 16)
    assert choice == plain.model_copy(update={"epochs": 2, "inner_rate": 0.75, "batch_size": 16})
    assert set(SHARED) < set(Recipe.model_fields)


def test_a_run_for_choice_alone_takes_all_settings(world: paml.Dataset) -> None:
    found = recipe_for(world, "tuned", "melu", {"head": "choice", "inner_rate": 0.5, "choice.inner_steps": 7})
    assert (found.head, found.inner_rate, found.inner_steps) == ("choice", 0.5, 7)
    part = choice_recipe("tuned", "melu", {"inner_rate": 0.5}, "melu", DataSize.of(world))
    assert part.inner_rate == of_choice("tuned", "melu").inner_rate
    assert part.head == "choice"


def test_a_table_for_the_choice_part_of_a_method(world: paml.Dataset, tmp_path: Path) -> None:
    """It is that of the run's method, whatever the part's; settings that are given come before it."""
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace("[method.melu]", "[method.paml.choice]\nepochs = 7\ninner_steps = 4\n\n[method.melu]"))

    def part(run_method: str, **given: object) -> tuple[int, int]:
        overrides = {key.replace("__", "."): value for key, value in given.items()}
        found = choice_recipe(path, "melu", overrides, run_method, DataSize.of(world))
        return found.epochs, found.inner_steps

    assert part("paml") == (7, 4)
    assert part("melu") == (5, 1)
    assert part("paml", epochs=2, inner_steps=9) == (2, 4)  # of these, epochs are for both parts
    assert part("paml", epochs=2, choice__epochs=3, choice__inner_steps=8) == (3, 8)
    assert load_recipe(path, "paml", {}).inner_steps == 1
    path.write_text("[method.paml.choice]\nepoch = 7\n")
    with pytest.raises(SettingsError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        load_recipe(path, "melu", {})


def test_named_recipes_have_a_choice_part_for_ratings_alone() -> None:
    assert load_recipe("tuned", "ridge", {}).choice_part
    assert not load_recipe("tuned", "ridge", {}, target="click").choice_part
    assert not load_recipe("paper", "paml", {}).choice_part
    for recipe in recipe_names():
        assert not of_choice(recipe, "melu").choice_part


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"taste_dropout": 0.3}, "taste_dropout is for a choice among all items; use head=choice, or set it to 0"),
        ({"head": "choice", "hidden": "8"}, "a choice among all items needs item vectors and no hidden layer; set"),
        ({"head": "choice", "network": "fields"}, "needs item vectors and no hidden layer; set network=factors"),
        ({"head": "choice", "affinity_fields": "director"}, "affinity is for ratings, .*; set affinity_fields="),
        ({"head": "choice", "user_bias_discount": 0.5}, "user_bias_discount needs a squared error"),
        ({"head": "choice", "taste_dropout": 1.0}, "setting 'taste_dropout' is 1.0; expected less than 1"),
        ({"head": "choise"}, "setting 'head' is 'choise'; expected 'auto', .* or 'choice'"),
        ({"liked": 9}, "liked is 9; expected a value of the scale, above 1 and at most 5"),
        ({"head": "choice", "liked": 1}, "liked is 1; expected a value of the scale"),
        ({"choice.inner_stps": 3}, "unknown setting 'choice.inner_stps'; did you mean 'choice.inner_steps'"),
        ({"choice.inner_steps": -1}, "setting 'inner_steps' is -1"),
        (
            {"choice_part": False, "choice.inner_steps": 3},
            "'choice.inner_steps' is for the choice part, which this run ",
        ),
        (
            {"recipe": "paper", "choice.epochs": 3},
            "'choice.epochs' is for the choice part, which this run does not have",
        ),
        ({"choice_method": "rige"}, "unknown method 'rige'; did you mean 'ridge'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, object], message: str, world: paml.Dataset, tmp_path: Path
) -> None:
    recipe = str(settings.get("recipe", "tuned"))
    settings = {name: value for name, value in settings.items() if name != "recipe"}
    with pytest.raises(SettingsError, match=message):
        paml.train(world, "melu", recipe, out=tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_settings_of_the_choice_part(world: paml.Dataset, tmp_path: Path) -> None:
    arguments = ["epochs=0", "ensemble_size=1", "choice.item_embedding=4", "choice.inner_steps=2"]
    done = command("train", world.path, "--method", "melu", "--out", tmp_path / "run", *arguments)
    assert done.returncode == 0, done.stderr
    run = paml.load(tmp_path / "run")
    assert run.chooser is not None
    assert run.chooser.members[0].network.items.width == 4
    assert run.chooser.members[0].solver.steps == 2
    assert run.ensemble.members[0].network.items.width != 4
