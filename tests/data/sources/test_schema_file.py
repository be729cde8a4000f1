import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import paml
from paml.data.resplit import resplit
from paml.errors import PamlError

Edit = Callable[[str, str, str], Path]


def test_tables_become_a_data_set(tables: Path, tmp_path: Path) -> None:
    data = paml.prepare("tables", tables, tmp_path / "out", cold_share=1, seed=3)
    assert (data.manifest.users, data.manifest.items) == (20, 12)
    original = pl.read_csv(tables / "ratings.csv")
    assert data.manifest.interactions == len(original)
    rows = data.interactions().collect()
    users, items = data.users().collect(), data.items().collect()
    back = pl.DataFrame(
        {
            "uid": users["user"].gather(rows["user"]).cast(pl.Int64),
            "movie": items["item"].gather(rows["item"]).cast(pl.Int64),
            "stars": rows["target"].cast(pl.Int64),
            "when": rows["time"].cast(pl.Int64),
        }
    )
    assert back.sort("uid", "movie").equals(original.sort("uid", "movie"))
    assert users["town"].to_list()[0].startswith("Town, ")
    assert items["title"][3] == 'The "Film" 3'
    assert items["genres"][4].to_list() == ["drama", "genre1"]


def test_an_archive_equals_its_folder(tables: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tables.parent, tables.name)
    from_folder = paml.prepare("tables", tables, tmp_path / "a")
    from_archive = paml.prepare("tables", archive, tmp_path / "b")
    assert from_archive.fingerprint == from_folder.fingerprint


def test_users_without_profile_are_kept_as_unknown_and_counted(edit: Edit, tmp_path: Path) -> None:
    folder = edit("users.csv", '7,F,21,"Town, 3"\n8,M,22,"Town, 0"\n', '8,M,,"Town, 0"\n')
    data = paml.prepare("tables", folder, tmp_path / "a", cold_share=1, drop_invalid_profiles=True)
    assert (data.manifest.users, data.manifest.source.users_without_profile) == (
        19,
        1,
    )  # user 8 has a profile with a blank value
    row = data.users().collect()["user"].to_list().index("7")
    assert data.array("user.town")[row] == 0
    loose = paml.prepare("tables", folder, tmp_path / "b", cold_share=1)
    assert (loose.manifest.users, loose.manifest.source.users_without_profile) == (20, 1)


def test_keys_that_became_floats_match_their_rows(tables: Path, tmp_path: Path) -> None:
    log = tables / "ratings.csv"
    head, *lines = log.read_text().splitlines()
    log.write_text("\n".join([head, *(line.replace(",", ".0,", 1) for line in lines)]) + "\n")
    data = paml.prepare("tables", tables, tmp_path / "out", cold_share=1)
    assert (data.manifest.users, data.manifest.source.users_without_profile) == (20, 0)
    log.write_text("\n".join([head, *("u" + line for line in lines)]) + "\n")
    data = paml.prepare("tables", tables, tmp_path / "other", cold_share=1)
    note = "20 of 20 users have no row in users.csv: are keys written as in the interactions?"
    assert data.manifest.notes == (note,)


def test_invalid_values_are_not_inputs(tables: Path, tmp_path: Path) -> None:
    schema = tables / "schema.toml"
    text = schema.read_text().replace('price = "numeric"', 'price = { kind = "numeric", maximum = 9 }')
    text = text.replace(
        "[users]",
        '[interactions.context]\nmoment = { kind = "categorical", column = "when", pattern = "100."}\n[users]',
    )
    schema.write_text(text)
    users = tables / "users.csv"
    users.write_text(users.read_text().replace("0,M,20,", "0,M,300,", 1))
    data = paml.prepare("tables", tables, tmp_path / "out", cold_share=1, drop_invalid_profiles=False)
    people = data.users().collect()
    row = people["user"].to_list().index("0")
    assert (people["age"][row], data.array("user.age")[row]) == (None, 0)
    assert data.items().collect()["price"].to_list() == [*(i + 0.5 for i in range(9)), None, None, None]
    assert data.array("item.price")[9:].tolist() == [0, 0, 0]
    late = data.interactions().collect()["time"].to_numpy() >= 1010
    assert ((data.array("context.moment") == 0) == late).all()
    other = resplit(data, 3, tmp_path / "other")
    assert other.manifest.source.users_without_profile == 0


def test_bad_lines_are_skipped_and_counted(edit: Edit, tmp_path: Path) -> None:
    clean = paml.prepare("tables", edit("ratings.csv", "0,0,1,1000\n", ""), tmp_path / "a")
    folder = edit("ratings.csv", "0,1,2,1001\n", "garbage\n0,1,2,1001\n0,2,9,5\n")
    dirty = paml.prepare("tables", folder, tmp_path / "b", skip_bad_lines=True)
    assert dirty.manifest.source.bad_lines == 2
    assert dirty.interactions().collect().equals(clean.interactions().collect())


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("ratings.csv", "0,1,2,1001", "0,1,2", r"ratings.csv line 3: 3 fields where 4 are expected"),
        ("ratings.csv", "0,1,2,1001", "0,1,x,1001", r"ratings.csv line 3: stars 'x' is not a number from 1 to 5"),
        ("ratings.csv", "0,1,2,1001", "0,1,6,1001", r"ratings.csv line 3: stars '6' is not a number from 1 to 5"),
        (
            "ratings.csv",
            "0,1,2,1001",
            "0,99,2,1001",
            r"movies.csv: item '99' has interactions but no row \(1 such items\)",
        ),
        ("users.csv", '1,F,21,"Town, 1"', '0,F,21,"Town, 1"', r"users.csv line 3: user '0' has more than one row"),
        ("movies.csv", "0.5", "cheap", r"movies.csv line 2: price 'cheap' is not a number"),
        (
            "schema.toml",
            'gender = "categorical"',
            'gender = { kind = "categorical", pattern = "(" }',
            r"^schema.toml: field 'gender': setting 'pattern' is '\('; expected a regular expression without",
        ),
        (
            "schema.toml",
            'price = "numeric"',
            'price = { kind = "numeric", prefix = 2 }',
            r"field 'price': setting 'prefix' is 2; expected a prefix only of a categorical field",
        ),
        ("schema.toml", "[users.fields]", "[users.fields", r"schema.toml: is not TOML"),
        ("schema.toml", 'key = "movie"', 'kee = "movie"', r"schema.toml: setting 'items.key'"),
        ("schema.toml", 'genres = "multi"', 'genres = "many"', r"expected 'categorical', 'multi', 'numeric' or"),
        ("schema.toml", 'column = "home town"', 'column = "home"', r"users.csv: has no column 'home'; did you mean"),
        (
            "schema.toml",
            'file = "movies.csv"',
            'file = "films.csv"',
            r"has no file 'films.csv'; did you mean 'movies.csv'",
        ),
    ],
)
def test_bad_input(edit: Edit, tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    folder = edit(file, old, new)
    with pytest.raises(PamlError, match=message):
        paml.prepare("tables", folder, tmp_path / "out", cold_share=1)
    assert {path.name for path in tmp_path.iterdir()} == {"tables"}  # nothing half-written


def test_missing_and_truncated_input(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(PamlError, match=r"nowhere: no such file or folder; check its name"):
        paml.prepare("tables", tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(PamlError, match="needs a folder or archive; give the path of one"):
        paml.prepare("tables", out=tmp_path / "out")
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", tables))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PamlError, match=r"packed.zip: not a complete zip archive"):
        paml.prepare("tables", archive, tmp_path / "out")
    position = whole.find(b"uid,movie")
    position = position if position > 0 else whole.find(b"ratings.csv") + 40  # inside the first member's data
    archive.write_bytes(whole[:position] + b"\x00\xff\x00\xff" + whole[position + 4 :])
    with pytest.raises(PamlError, match=r"packed.zip: 'ratings.csv' cannot be unpacked"):
        paml.prepare("tables", archive, tmp_path / "out")


def test_one_file_under_two_names(tables: Path, tmp_path: Path) -> None:
    schema = (tables / "schema.toml").read_text().split("[items]")[0]
    log = (tables / "ratings.csv").read_text().replace("\n", ",a\n").replace("when,a", "when,colour")
    (tables / "ratings.csv").write_text(log + "garbage\n0,1,9,1001,a\n")
    (tables / "schema.toml").write_text(
        schema + '[items]\nfile = "./ratings.csv"\nkey = "movie"\n[items.fields]\ncolour = "categorical"\n'
    )
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tables)
    for place, out in ((tables, "a"), (archive, "b")):
        data = paml.prepare("tables", place, tmp_path / out, cold_share=1, skip_bad_lines=True)
        assert (data.manifest.items, data.manifest.source.bad_lines) == (12, 2)


def test_subfolders_of_a_schemas_folder_are_not_searched(tables: Path, tmp_path: Path) -> None:
    (tables / "old").mkdir()
    (tables / "users.csv").rename(tables / "old" / "users.csv")
    with pytest.raises(PamlError, match=r"has no file 'users.csv'"):
        paml.prepare("tables", schema=tables / "schema.toml", out=tmp_path / "out")
    schema = tables / "schema.toml"
    schema.write_text(schema.read_text().replace('"users.csv"', '"old/users.csv"'))
    assert paml.prepare("tables", schema=schema, out=tmp_path / "out", cold_share=1).manifest.users == 20


def test_messages(tables: Path, tmp_path: Path, edit: Edit) -> None:
    with pytest.raises(PamlError, match=r"tables: is a folder, not a schema file; name the file in it"):
        paml.prepare("tables", schema=tables, out=tmp_path / "out")
    with pytest.raises(
        PamlError, match=r"ratings.csv: is a single file, not a folder .*; give the folder that contains it"
    ):
        paml.prepare("tables", tables / "ratings.csv", tmp_path / "out")
    log = tables / "ratings.csv"
    text = log.read_text()
    log.write_text(text.splitlines()[0] + "\n")
    with pytest.raises(PamlError, match=r"ratings.csv: has no rows"):
        paml.prepare("tables", tables, tmp_path / "out")
    log.write_text(text)
    folder = edit("schema.toml", 'column = "home town"', 'column = ""')
    with pytest.raises(PamlError, match=r"users.csv: has no column ''"):
        paml.prepare("tables", folder, tmp_path / "out")


def test_support_by_time_takes_the_earliest_rows(tables: Path, tmp_path: Path) -> None:
    data = paml.prepare("tables", tables, tmp_path / "out", cold_share=1, support_by="time")
    bounds = (
        data.interactions()
        .group_by("user")
        .agg(pl.col("time").filter(~pl.col("query")).max().alias("a"), pl.col("time").filter("query").min().alias("b"))
        .collect()
    )
    assert (bounds["a"] < bounds["b"]).all()
    toml = tables / "schema.toml"
    toml.write_text(toml.read_text().replace('time = "when"\n', ""))
    with pytest.raises(PamlError, match="support_by is 'time', but the interactions have no time"):
        paml.prepare("tables", tables, tmp_path / "other", support_by="time")
