"""Rules that a preparation must follow, tested on data that reveals any violation."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import paml
from paml.baselines import SHRINKAGES, BiasModel, SplitRows, tuned_bias
from paml.cli import app
from paml.data.readers.inputs import InputFolder
from paml.episodes.tasks import Tasks
from paml.errors import DataError, PamlError
from paml.files import listed

Edit = Callable[[str, str, str], Path]


def pairs(data: paml.Dataset, query: bool) -> set[tuple[str, str]]:
    rows = data.interactions().filter(pl.col("query") == query).collect()
    users, items = data.users().collect()["user"], data.items().collect()["item"]
    return set(zip(users.gather(rows["user"]), items.gather(rows["item"]), strict=True))


def test_support_and_query_rows_are_random_and_depend_on_the_seed(tables: Path, tmp_path: Path) -> None:
    first, again, other = (
        paml.prepare("tables", tables, tmp_path / name, cold_share=1, seed=seed)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert pairs(first, True) == pairs(again, True) != pairs(other, True)
    last = pl.read_csv(tables / "ratings.csv").group_by("uid").agg(pl.col("movie").last())
    in_file_order = sum((str(user), str(item)) in pairs(first, True) for user, item in last.iter_rows())
    assert in_file_order < 15  # of 20 users: those whose last line happens to be a query row


def test_context_is_encoded_from_training_rows_only(edit: Edit, tmp_path: Path) -> None:
    folder = edit(
        "schema.toml", 'time = "when"\n', 'context = { moment = { kind = "categorical", column = "when" } }\n'
    )
    data = paml.prepare("tables", folder, tmp_path / "out", cold_share=1)
    end = data.array("offsets")[data.manifest.splits["train"][1]]
    seen = set(data.interactions().collect()["moment"][:end])
    assert set(data.vocabulary.context["moment"].values) == seen  # type: ignore[union-attr]
    assert len(data.array("context.moment")) == data.manifest.interactions


def test_common_values_are_counted_over_all_users_of_the_source(edit: Edit, tmp_path: Path) -> None:
    """Forty more users from another town, who never rated anything, make that town common."""
    inactive_users = "".join(f"{uid},M,20,Nowhere\n" for uid in range(100, 140))
    folder = edit("users.csv", "home town\n", "home town\n" + inactive_users)
    data = paml.prepare("tables", folder, tmp_path / "out", cold_share=1)
    assert "Nowhere" in data.vocabulary.common["town"]
    assert data.manifest.users == 20
    assert data.manifest.rules[0].dropped == 40


def test_repeated_ratings_count_once(edit: Edit, tmp_path: Path) -> None:
    folder = edit("ratings.csv", "0,1,2,1001\n", "0,1,5,900\n0,1,2,1001\n")
    data = paml.prepare("tables", folder, tmp_path / "out", cold_share=1)
    assert data.manifest.source.repeated == 1
    assert not pairs(data, True) & pairs(data, False)
    clean = paml.prepare("tables", edit("ratings.csv", "0,1,5,900\n", ""), tmp_path / "clean", cold_share=1)
    assert data.manifest.interactions == clean.manifest.interactions


def test_fields_may_have_names_of_internal_columns(edit: Edit, tmp_path: Path) -> None:
    for number, name in enumerate(("user_row", "item_row", "key", "source_row", "rows", "positives")):
        folder = edit(
            "schema.toml", 'time = "when"\n', f'context = {{ {name} = {{ kind = "numeric", column = "when" }} }}\n'
        )
        data = paml.prepare("tables", folder, tmp_path / str(number), cold_share=1)
        assert data.interactions().collect()[name].min() >= 1000
        edit("schema.toml", f'context = {{ {name} = {{ kind = "numeric", column = "when" }} }}\n', 'time = "when"\n')


def test_paths_with_glob_characters(tables: Path, tmp_path: Path) -> None:
    folder = tables.rename(tmp_path / "in[1]*")
    data = paml.prepare("tables", folder, tmp_path / "out[2]", cold_share=1)
    assert paml.describe(data)["interactions"] == data.manifest.interactions
    assert paml.prepare("synthetic", out=tmp_path / "world[x]", users=50).manifest.users > 0


def test_verify_finds_a_changed_table(tables: Path, tmp_path: Path) -> None:
    data = paml.prepare("tables", tables, tmp_path / "out", cold_share=1)
    users = pl.read_parquet(data.path / "users.parquet")
    users.with_columns(split=pl.lit("train")).write_parquet(data.path / "users.parquet", row_group_size=1 << 20)
    manifest = json.loads((data.path / "manifest.json").read_text())
    manifest["files"]["users.parquet"] = listed(data.path / "users.parquet").model_dump()
    (data.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PamlError, match="the manifest was edited"):
        paml.open_data(data.path)
    forged = paml.Dataset(data.path, data.manifest)
    with pytest.raises(
        PamlError, match=r"users.parquet: has .* bytes where .* were written|differs from what was written"
    ):
        forged.verify()


def test_content_is_part_of_the_fingerprint(world: paml.Dataset) -> None:
    changed = world.manifest.model_copy(update={"content": {**world.manifest.content, "vocabulary.json": "0"}})
    assert changed.computed_fingerprint() != world.fingerprint
    other_library = world.manifest.model_copy(update={"files": {}, "created_by": "paml 9"})
    assert other_library.computed_fingerprint() == world.fingerprint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "rating"\nlow = 1\nhigh = 5', 'kind = "rating"', "low and high of the rating scale"),
        ("high = 5", "high = inf", "finite number"),
        ("high = 5", "high = 5\nstep = 2", r"ratings.csv line 3: stars '2' is not a number from 1 to 5 in steps of 2"),
        ('genres = "multi"', 'genres = { kind = "multi", minimum = 1 }', "field 'genres'.*no minimum"),
        ('price = "numeric"', 'price = { kind = "numeric", pattern = "x" }', "field 'price'.*no pattern"),
        ('gender = "categorical"', 'gender = { kind = "categorical", pattern = "(?!x).*" }', "without look-around"),
        ('gender = "categorical"', 'split = { kind = "categorical", column = "gender" }', "field 'split'.*reserved"),
        (
            'kind = "rating"\nlow = 1\nhigh = 5',
            'kind = "click"',
            r"ratings.csv line 3: stars '2' is not a number from 0",
        ),
    ],
)
def test_schema_mistakes(edit: Edit, tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(PamlError, match=message):
        paml.prepare("tables", edit("schema.toml", old, new), tmp_path / "out", cold_share=1)


def test_off_scale_targets_of_any_source_are_refused(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paml.data import sources
    from paml.data.sources import tables as module

    def load(request: sources.LoadRequest) -> sources.RawData:
        raw = module.load(request)
        return sources.RawData(**{**vars(raw), "interactions": raw.interactions.with_columns(target=pl.lit(2.5))})

    monkeypatch.setitem(
        sources.SOURCES, "tables", sources.Source("tables", "", module.TablesSettings, load, frozenset({"path"}))
    )
    with pytest.raises(DataError, match=r"ratings.csv: user '\d+', item '\d+': target 2.5 is off the scale"):
        paml.prepare("tables", tables, tmp_path / "out")


def test_a_failed_preparation_leaves_no_parent_folders(tmp_path: Path) -> None:
    with pytest.raises(PamlError, match="no users are left"):
        paml.prepare("synthetic", out=tmp_path / "a" / "b" / "c", users=50, min_interactions=5000)
    assert not list(tmp_path.iterdir())


def test_files_of_the_same_name_in_several_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "a.csv").write_text(name)
    with pytest.raises(DataError, match=r"has several files 'a.csv' \(one/a.csv, two/a.csv\)"):
        InputFolder(tmp_path / "in", tmp_path).file("a.csv")
    (tmp_path / "in" / "a.csv").write_text("top")
    assert InputFolder(tmp_path / "in", tmp_path).file("a.csv").read_text() == "top"


def test_batches_come_in_random_order() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(2, 200, size=640))
    tasks = Tasks(0, np.concatenate([[0], np.cumsum(lengths)]), np.ones(640, dtype=np.int64))
    widths = [batch.support.row_BL.shape[1] for batch in tasks.episodes(32, np.random.default_rng(1))]
    assert widths != sorted(widths)
    assert widths != sorted(widths, reverse=True)


def test_bias_is_tuned_on_validation_users(world: paml.Dataset) -> None:
    validation = SplitRows.of(world, "validation")
    chosen = validation.query_error(tuned_bias(world).predict(validation)).mean()
    for shrinkage in SHRINKAGES:
        model = BiasModel.fit(world, shrinkage, shrinkage)
        assert chosen <= validation.query_error(model.predict(validation)).mean()


def test_numbers_that_hardly_vary_or_are_huge(edit: Edit, tmp_path: Path) -> None:
    folder = edit("movies.csv", "0.5\n", "1e300\n")
    data = paml.prepare("tables", folder, tmp_path / "out", cold_share=1)
    price = data.array("item.price")
    assert np.isfinite(price).all()
    assert np.abs(price[1:]).max() < 3


def own_tables(folder: Path, target: str, rows: Sequence[str], people: Sequence[str] = ()) -> Path:
    """A log, and perhaps profiles with one field."""
    folder.mkdir()
    schema = f'[target]\n{target}\n[interactions]\nfile = "log.csv"\nuser = "user"\nitem = "item"\ntarget = "y"\n'
    if people:
        (folder / "users.csv").write_text("\n".join(["user,town", *people]) + "\n")
        schema += '[users]\nfile = "users.csv"\nkey = "user"\n[users.fields]\ntown = "categorical"\n'
    (folder / "schema.toml").write_text(schema)
    (folder / "log.csv").write_text("\n".join(["user,item,y", *rows]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        ('kind = "click"', 1, "all 60 targets are 1: there is nothing to predict; add rows for what was shown and not"),
        ('kind = "click"', 0, "all 60 targets are 0: there is nothing to predict; add rows for what was clicked"),
        ('kind = "rating"\nlow = 1\nhigh = 5', 4, "all 60 ratings are 4: there is nothing to predict; name another"),
    ],
)
def test_a_constant_target_is_refused(tmp_path: Path, target: str, value: int, message: str) -> None:
    rows = [f"{u},{i},{value}" for u in range(10) for i in range(6)]
    with pytest.raises(PamlError, match=f"log.csv: {message}"):
        paml.prepare("tables", own_tables(tmp_path / "raw", target, rows), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_rule_that_drops_most_users_is_said_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{u},{i},{(u + i) % 2}" for u in range(20) for i in range(6)]
    people = [f"{u},{'Rome' if u < 5 else ''}" for u in range(20)]
    folder = own_tables(tmp_path / "raw", 'kind = "click"', rows, people)
    kept = paml.prepare("tables", folder, tmp_path / "all")
    assert kept.manifest.users == 20  # the paper's rule is not for own tables
    assert not any("rule" in note for note in kept.manifest.notes)
    few = paml.prepare("tables", folder, tmp_path / "few", drop_invalid_profiles=True, progress=True, cold_share=1)
    assert few.manifest.users == 5
    note = few.manifest.notes[0]
    assert note.startswith("warning: the rule 'no blank or invalid profile value' dropped 15 of 20 users, and kept 5")
    assert "drop_invalid_profiles=false keeps them" in note
    assert note in capsys.readouterr().err
    for number, shown in enumerate((None, False)):  # where nobody watches, too
        out = tmp_path / f"few{number}"
        paml.prepare("tables", folder, out, drop_invalid_profiles=True, progress=shown, cold_share=1)
        nobody = "warning: there are no validation users (user_ratio of 5 users)"
        first, second = capsys.readouterr().err.splitlines()
        assert (first, second.partition(":")[0], nobody in second) == (note, "warning", True)
    strict = ["drop_invalid_profiles=true", "cold_share=1", "--from", str(folder), "--out", str(tmp_path / "c")]
    told = CliRunner().invoke(app, ["data", "prepare", "tables", *strict])
    assert note in told.stderr
    assert "warning" not in told.stdout
