"""Users' own recipe files: given by path, checked as a whole, and compared by content."""

from pathlib import Path

import pytest

import paml
from paml.errors import SettingsError
from paml.training.recipe import Recipe, load_recipe, recipe_digest, recipe_label

TEXT = """
outer_rate = 1e-3
hidden = [8]

[source.ml-1m]
exclude_fields = ["item.year"]

[method.melu]
inner_rate = 0.25
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(TEXT)
    return path


def test_a_file_is_a_recipe(file: Path) -> None:
    assert load_recipe(file, "paml", {}) == Recipe(outer_rate=1e-3, hidden=(8,))
    assert load_recipe(str(file), "melu", {"hidden": "4"}, "ml-1m") == Recipe(
        outer_rate=1e-3, hidden=(4,), exclude_fields=("item.year",), inner_rate=0.25
    )
    assert recipe_label(file) == "own"
    assert recipe_label("paper") == "paper"


def test_tables_of_the_data_set_override_others(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("epochs = 1\n[source.ml-1m]\nepochs = 4\n[method.melu]\nepochs = 2\n[target.click]\nepochs = 3\n")
    asked = [("paml", "", "rating"), ("melu", "", "rating"), ("melu", "", "click"), ("melu", "ml-1m", "click")]
    found = [load_recipe(path, method, {}, source, target).epochs for method, source, target in asked]
    assert found == [1, 2, 3, 4]
    assert load_recipe(path, "melu", {"epochs": 5}, "ml-1m").epochs == 5
    path.write_text(path.read_text() + "[source.ml-1m.method.melu]\nepochs = 6\n")
    assert [load_recipe(path, method, {}, "ml-1m").epochs for method in ("paml", "melu")] == [4, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("outer_rat = 1", r"own.toml: unknown setting 'outer_rat'; did you mean 'outer_rate'"),
        ("outer_rate = -1", r"own.toml: setting 'outer_rate' is -1; expected greater than 0"),
        ("outer_rate = ", r"own.toml: is not TOML \("),
        ("[layers]\nx = 1", r"own.toml: unknown setting 'layers'"),
        ("[outer_rate]\nx = 1", r"own.toml: setting 'outer_rate' is {'x': 1}; expected a valid number"),
        ("method = 3", r"own.toml: 'method' is not a table of tables; write \[method.NAME\]"),
        ("[source]\nhidden = [8]", r"own.toml: 'source' is not a table of tables"),
        ("[method.melu]\ngama = 1", r"own.toml: unknown setting 'gama'; did you mean 'gamma'"),
        (
            "[source.ml-1m.method]\nepochs = 3",
            r"'source.ml-1m.method' is not a table of tables; write \[source.ml-1m.method.NAME\]",
        ),
        ("[source.ml-1m.method.melu]\ngama = 1", r"own.toml: unknown setting 'gama'; did you mean 'gamma'"),
        ("[target.click.method.melu]\ngamma = 1", r"own.toml: unknown setting 'method'"),
        ("[target.choice.method.melu]\ngama = 1", r"own.toml: unknown setting 'gama'; did you mean 'gamma'"),
        ("[target.choice.method]\nepochs = 3", r"'target.choice.method' is not a table of tables"),
        ("[method.melu.deeper]\nx = 1", r"own.toml: unknown setting 'deeper'"),
    ],
)
def test_invalid_files_are_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        load_recipe(file, "paml", {})


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere.toml: cannot be read \(No such file"):
        load_recipe(tmp_path / "nowhere.toml", "paml", {})
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(SettingsError, match=r"folder.toml: cannot be read \(Is a directory"):
        load_recipe(tmp_path / "folder.toml", "paml", {})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"binary.toml: is not TOML"):
        load_recipe(tmp_path / "binary.toml", "paml", {})


def test_the_digest_ignores_comments(file: Path) -> None:
    before = recipe_digest(file)
    file.write_text("# why\n" + TEXT)
    assert recipe_digest(file) == before
    file.write_text(TEXT.replace("0.25", "0.5"))
    assert recipe_digest(file) != before


@pytest.mark.usefixtures("without_pdf")
def test_a_comparison_detects_changed_content(world: paml.Dataset, file: Path, tmp_path: Path) -> None:
    settings = {"epochs": 1, "embedding_size": 4}
    out = tmp_path / "out"
    paml.compare(world, ["melu"], 1, file, out=out, baselines=["bias"], settings=settings)
    run = paml.load(out / "runs" / "melu@0")
    assert (run.settings.recipe.inner_rate, run.settings.recipe_name) == (0.25, str(file))
    file.write_text(TEXT.replace("0.25", "0.5"))
    with pytest.raises(SettingsError, match="was begun with a recipe of the same name but other content"):
        paml.compare(world, ["melu"], 1, file, out=out, baselines=["bias"], settings=settings)


def test_the_default_folder_of_a_run(
    world: paml.Dataset, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = paml.train(world, "melu", file, epochs=1, embedding_size=4)
    assert run.path == Path("paml-runs/synthetic-melu-own-0")
