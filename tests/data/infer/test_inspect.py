"""Guessed schemas: a preparation accepts them unchanged, and every guess states its reason."""

import gzip
import os
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import paml
from paml.cli import app
from paml.data.infer.render import _value, inspect_files
from paml.errors import PamlError

FILES = ("ratings.csv", "users.csv", "movies.csv")
USERS, ITEMS = 30, 15
LOG = [(u, i, 1 + (u * 7 + i * 3 + u * i) % 5) for u in range(USERS) for i in range(ITEMS) if (u + i) % 3]
START = 1_600_000_000


def write(
    path: Path, header: str, rows: Sequence[Sequence[Any]], separator: str = ",", encoding: str = "utf-8"
) -> Path:
    lines = [header, *(separator.join(str(value) for value in row) for row in rows)]
    path.write_text("\n".join(line for line in lines if line) + "\n", encoding=encoding)
    return path


def log_rows(*more: Any) -> list[tuple[Any, ...]]:
    """User, item, rating, and a column for each function of (row number, user, item)."""
    return [(100 + u, 5000 + i, r, *(f(k, u, i) for f in more)) for k, (u, i, r) in enumerate(LOG)]


def round_trip(out: Path, *files: Path, **settings: Any) -> tuple[dict[str, Any], paml.Dataset, str]:
    """Inspect, write the schema, prepare: the schema as values, the prepared data, and the schema's text."""
    schema = files[0].parent / "guessed.toml"
    found = inspect_files(files)
    assert not found.gaps
    found.write(schema)
    data = paml.prepare("tables", schema=schema, out=out / "prepared", **{"cold_share": 1, **settings})
    schema.unlink()
    return tomllib.loads(found.text), data, found.text


@pytest.mark.parametrize("order", list(permutations(FILES)), ids="-".join)
def test_three_files_in_any_order(tables: Path, tmp_path: Path, order: tuple[str, ...]) -> None:
    expected = tomllib.loads((tables / "schema.toml").read_text())
    guessed, data, text = round_trip(tmp_path, *(tables / name for name in order))
    assert guessed["target"] == {"kind": "rating", "low": 1, "high": 5, "step": 1}
    assert guessed["interactions"] == expected["interactions"]
    assert guessed["users"]["fields"] == {
        "gender": "categorical",
        "age": "categorical",
        "home_town": {"kind": "categorical", "column": "home town"},
    }
    assert guessed["items"]["fields"] == {"title": "identifier", "genres": "multi", "price": "numeric"}
    assert (data.manifest.users, data.manifest.items) == (20, 12)
    reasons = [line for line in text.splitlines() if "=" in line and not line.startswith(("file", "high", "step"))]
    assert all("  # " in line for line in reasons)


def test_colons_as_separator(tmp_path: Path) -> None:
    log = write(
        tmp_path / "ratings.dat", "UserID::MovieID::Rating::Timestamp", log_rows(lambda k, u, i: START + k), "::"
    )
    movies = [(5000 + i, f"Film, The {i}", "Drama|War" if i % 2 else f"Comedy|Genre{i % 3}") for i in range(ITEMS)]
    items = write(tmp_path / "movies.dat", "MovieID::Title::Genres", movies, "::")
    guessed, data, text = round_trip(tmp_path, items, log)
    assert guessed["interactions"]["separator"] == guessed["items"]["separator"] == "::"
    assert guessed["interactions"]["time"] == "Timestamp"
    assert "unix seconds" in text
    assert guessed["items"]["fields"] == {"Title": "identifier", "Genres": "multi"}
    assert "users" not in guessed
    assert data.manifest.interactions == len(LOG)


def test_without_a_header_columns_are_named(tmp_path: Path) -> None:
    log = write(tmp_path / "ratings.dat", "", log_rows(lambda k, u, i: START + k), "::")
    people = [(100 + u, "FM"[u % 2], 1 + u % 4) for u in range(USERS)]
    users = write(tmp_path / "users.dat", "", people, "::")
    guessed, data, text = round_trip(tmp_path, users, log)
    assert guessed["interactions"]["columns"] == ["c1", "c2", "c3", "c4"]
    assert [guessed["interactions"][role] for role in ("user", "item", "target", "time")] == ["c1", "c2", "c3", "c4"]
    assert guessed["users"]["fields"] == {"c2": "categorical", "c3": "categorical"}
    assert "the first line holds values" in text
    assert data.manifest.interactions == len(LOG)


def test_parquet_with_dates_and_lists(tmp_path: Path) -> None:
    rows = log_rows(lambda k, u, i: datetime(2021, 3, 5) + timedelta(hours=k))
    names = ["customer_id", "product_id", "stars", "bought_at"]
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp_path / "log.parquet")
    things = pl.DataFrame(
        {
            "product_id": [5000 + i for i in range(ITEMS)],
            "tags": [["a", f"b{i % 3}"] for i in range(ITEMS)],
            "new": [i % 2 == 0 for i in range(ITEMS)],
            "weight": [0.25 * i * i for i in range(ITEMS)],
            "size": [{"x": i} for i in range(ITEMS)],
        }
    )
    things.write_parquet(tmp_path / "products.parquet")
    guessed, data, _ = round_trip(tmp_path, tmp_path / "log.parquet", tmp_path / "products.parquet", support_by="time")
    assert guessed["interactions"]["time"] == "bought_at"
    assert guessed["items"]["fields"] == {"tags": "multi", "new": "categorical", "weight": "numeric"}
    assert data.items().collect()["tags"][4].to_list() == ["a", "b1"]
    clicks = pl.read_parquet(tmp_path / "log.parquet").with_columns(pl.col("stars") > 2)
    clicks.write_parquet(tmp_path / "clicks.parquet")
    guessed, data, _ = round_trip(tmp_path / "b", tmp_path / "clicks.parquet")
    assert guessed["target"] == {"kind": "click"}
    assert set(data.interactions().collect()["target"]) == {0, 1}


def test_recbole_files(tmp_path: Path) -> None:
    rows = log_rows(lambda k, u, i: float(START + k))
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    log = write(tmp_path / "a.inter", header, rows, "\t")
    people = [(100 + u, 20 + u, "FM"[u % 2]) for u in range(USERS)]
    users = write(tmp_path / "a.user", "user_id:token\tage:token\tgender:token", people, "\t")
    things = [(5000 + i, f"Drama G{i % 3}", f"0.{i} 1.5") for i in range(ITEMS)]
    items = write(tmp_path / "a.item", "item_id:token\tclass:token_seq\tvector:float_seq", things, "\t")
    guessed, data, text = round_trip(tmp_path, users, items, log)
    assert guessed["interactions"] == {
        "file": "a.inter",
        "user": "user_id",
        "item": "item_id",
        "target": "rating",
        "time": "timestamp",
    }
    assert guessed["items"]["fields"] == {"class": {"kind": "multi", "separator": " "}}
    assert "left out: a list of numbers" in text
    assert data.items().collect()["class"][1].to_list() == ["Drama", "G1"]


def test_one_wide_file(tmp_path: Path) -> None:
    rows = log_rows(
        lambda k, u, i: ["Rome", "Oslo", "Bonn"][u % 3],
        lambda k, u, i: ["red", "blue"][i % 2],
        lambda k, u, i: ["sun", "rain", "snow"][k % 3],
        lambda k, u, i: f"{1 + k % 11}PM",
        lambda k, u, i: "same",
        lambda k, u, i: "" if k % 5 else "x",
        lambda k, u, i: f"https://a.example/{k}",
        lambda k, u, i: 100 + u,
    )
    header = "user,item,rating,town,colour,group,time,source,rare,link,user_copy"
    guessed, data, text = round_trip(tmp_path, write(tmp_path / "wide.csv", header, rows))
    assert guessed["users"] == {"file": "wide.csv", "key": "user", "fields": {"town": "categorical"}}
    assert guessed["items"] == {"file": "wide.csv", "key": "item", "fields": {"colour": "categorical"}}
    assert guessed["interactions"]["context"] == {
        "group_value": {"kind": "categorical", "column": "group"},
        "hour": {"kind": "categorical", "column": "time"},
    }
    for reason in ("all values are same", "80% of the values are blank", "web addresses", "repeats a key"):
        assert f"left out: {reason}" in text
    assert data.manifest.users == USERS


def test_times_with_an_offset_and_keys_that_became_floats(tmp_path: Path) -> None:
    rows = [
        (f"{u}.0", i, r, f"2021-03-05T10:{k // 60:02}:{k % 60:02}+{k % 3:02}:00")
        for k, (u, i, r) in enumerate(log_rows())
    ]
    log = write(tmp_path / "log.csv", "user,item,rating,at", rows)
    users = write(tmp_path / "users.csv", "user,gender", [(100 + u, "FM"[u % 2]) for u in range(USERS)])
    guessed, data, text = round_trip(tmp_path, log, users, support_by="time")
    assert guessed["interactions"]["time"] == "at"
    assert "dates like 2021-03-05T10:00:00+" in text
    assert (data.manifest.users, data.manifest.source.users_without_profile) == (USERS, 0)


def test_ratings_alone(tmp_path: Path) -> None:
    log = write(tmp_path / "ratings.csv", "userId,movieId,rating,timestamp", log_rows(lambda k, u, i: START * 1000 + k))
    guessed, data, text = round_trip(tmp_path, log)
    assert guessed["items"]["fields"] == {"movieId": "categorical"}
    assert "no profile: all users get the same learning rate" in text
    assert "unix milliseconds" in text
    assert data.manifest.items == ITEMS


def test_a_rating_that_is_text_is_not_the_target(tmp_path: Path) -> None:
    rows = log_rows(lambda k, u, i: ["PG-13", "R", "G"][i % 3])
    guessed, _, _ = round_trip(tmp_path, write(tmp_path / "log.csv", "user,item,stars,rating", rows))
    assert guessed["interactions"]["target"] == "stars"
    assert guessed["items"]["fields"] == {"rating": "categorical"}


def test_users_that_look_like_ratings(tmp_path: Path) -> None:
    rows = [(1 + u, 1 + i, 1 + (u * 2 + i * i) % 5) for u in range(5) for i in range(12)]
    guessed, data, _ = round_trip(tmp_path, write(tmp_path / "log.csv", "user,item,rating", rows))
    assert [guessed["interactions"][role] for role in ("user", "item", "target")] == ["user", "item", "rating"]
    assert data.manifest.users == 5


def test_two_possible_targets(tmp_path: Path) -> None:
    rows = log_rows(lambda k, u, i: k % 8)
    guessed, _, _ = round_trip(tmp_path, write(tmp_path / "named.csv", "user,item,rating,n_helpful", rows))
    assert guessed["interactions"]["target"] == "rating"
    assert guessed["interactions"]["context"] == {"n_helpful": "categorical"}
    text = paml.inspect([write(tmp_path / "vague.csv", "user,item,one,two", rows)])
    assert "it could also be two" in text
    assert "left out: could also be the target" in text


def test_what_leaks_the_target_is_not_an_input(tmp_path: Path) -> None:
    rows = [(u, i, r, r, r >= 4, f"{20 * r}%", "ab"[(u + i) % 2]) for u, i, r in log_rows()]
    log = write(tmp_path / "named.csv", "user,item,rating,stars,thumb_up,percent,page", rows)
    guessed, _, text = round_trip(tmp_path, log)
    assert guessed["interactions"]["target"] == "rating"
    assert guessed["interactions"]["context"] == {"page": "categorical"}
    assert text.count("left out: leaks the target: its values determine or follow from those of 'rating'") == 3
    clicks = [(u, i, START + u * i, f"p{(u + i) % 3}", int(r < 4), int(r >= 4)) for u, i, r in log_rows()]
    guessed, _, _ = round_trip(tmp_path / "b", write(tmp_path / "clicks.csv", "user,ad,ts,pid,nonclk,clk", clicks))
    assert guessed["interactions"]["target"] == "clk"
    assert guessed["interactions"]["context"] == {"pid": "categorical"}


def test_latin_1_semicolons_quotes_escapes_and_blanks(tmp_path: Path) -> None:
    rows = log_rows(
        lambda k, u, i: f'"Caf\xe9; the \\"{i}\\""', lambda k, u, i: "NULL" if k % 9 == 0 else f"{k % 50},5"
    )
    log = write(tmp_path / "log.csv", "user;item;rating;name;paid", rows, ";", "latin-1")
    guessed, data, text = round_trip(tmp_path, log)
    entry = guessed["interactions"]
    assert (entry["separator"], entry["encoding"], entry["escape"]) == (";", "latin-1", "\\")
    assert entry["blanks"] == ["NULL"]
    assert guessed["items"]["fields"]["name"] == "identifier"
    assert "decimal commas" in text
    assert data.items().collect()["name"][0].startswith('Caf\xe9; the "')


def test_a_quoted_file_with_a_broken_line(tmp_path: Path) -> None:
    rows = [tuple(f'"{value}"' for value in row) for row in log_rows(lambda k, u, i: "ab"[k % 2])]
    log = write(tmp_path / "log.csv", '"user","item","rating","shop"', [*rows, ('"1"', '"2"', '"3"', '"open')])
    guessed, data, text = round_trip(tmp_path, log, skip_bad_lines=True)
    assert "quote" not in guessed["interactions"]
    assert "# lines that cannot be cut into fields: 1; skip them when you prepare" in text
    assert data.manifest.source.bad_lines == 1  # though interactions and items are both read from the file


def test_quotation_marks_that_do_not_quote(tmp_path: Path) -> None:
    log = write(tmp_path / "log.tsv", "user\titem\trating\tsize", log_rows(lambda k, u, i: f'"{1 + k % 3} inch'), "\t")
    guessed, data, _ = round_trip(tmp_path, log)
    assert guessed["interactions"]["quote"] == ""
    assert data.manifest.interactions == len(LOG)


def test_a_rating_with_decimal_commas_is_reported_as_a_gap(tmp_path: Path) -> None:
    rows = [(u, i, f"{r},5") for u, i, r in log_rows()]
    found = inspect_files([write(tmp_path / "log.csv", "user;item;rating", rows, ";")])
    assert found.gaps == ["target: 'rating' has decimal commas: write its numbers with a point, and name it"]


def test_titles_with_commas_and_long_texts(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", "user,item,rating", log_rows())
    things = [
        (
            5000 + i,
            f'"Film {i}, The"',
            f'"{"plot " * 20}{i}"',
            f'"{["a, b", "a", "b, c, a", "c, a"][i % 4]}"',
            f"0{i % 4}",
        )
        for i in range(ITEMS)
    ]
    items = write(tmp_path / "things.csv", "item,title,plot,actors,zip code", things)
    guessed, _, text = round_trip(tmp_path, log, items)
    assert guessed["items"]["fields"] == {
        "title": "identifier",
        "actors": {"kind": "multi", "separator": ", "},
        "zip_code": {"kind": "categorical", "column": "zip code"},
    }
    assert "left out: free text" in text


def test_only_the_first_rows_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paml.data.infer.sample.ROWS", 100)
    text = paml.inspect([write(tmp_path / "log.csv", "user,item,rating", log_rows())])
    assert "a large file: only the first" in text


def test_files_in_another_folder_are_found(tables: Path, tmp_path: Path) -> None:
    files = [tables / name for name in FILES]
    beside = tmp_path / "schemas" / "mine.toml"
    beside.parent.mkdir()
    inspect_files(files, beside.parent).write(beside)
    assert 'file = "../tables/ratings.csv"' in beside.read_text()
    one = paml.prepare("tables", schema=beside, out=tmp_path / "one", cold_share=1)
    beside.write_text(beside.read_text().replace("../tables", str(tables.resolve())))
    two = paml.prepare("tables", schema=beside, out=tmp_path / "two", cold_share=1)
    assert one.manifest.content == two.manifest.content


def test_what_cannot_be_guessed_is_refused_by_prepare(tmp_path: Path) -> None:
    rows = [(*row[:2], ("good", "bad")[k % 2]) for k, row in enumerate(log_rows())]
    found = inspect_files([write(tmp_path / "log.csv", "user,item,rating", rows)])
    assert found.gaps == ["target: 'rating' does not hold a few evenly spaced numbers: name another, or round it"]
    found.write(tmp_path / "schema.toml")
    with pytest.raises(
        PamlError, match=r"schema.toml: setting 'target.kind' is '\?'; expected 'rating', 'click' or 'choice'"
    ):
        paml.prepare("tables", tmp_path, tmp_path / "out")
    profiles = [("FM"[k % 2], 20 + k % 7, 1 + k % 5) for k in range(3000)]
    found = inspect_files([write(tmp_path / "no_user.csv", "gender,age,rating", profiles)])
    assert [gap.split(":")[0] for gap in found.gaps] == ["user", "item"]


EVENTS: dict[str, tuple[Callable[[int], tuple[object, ...]], dict[str, object]]] = {
    "": (lambda k: (), {}),
    "event_type": (
        lambda k: (("view", "add_to_cart", "purchase")[k % 3],),
        {"event": "event_type", "weights": {"view": 1, "add_to_cart": 1, "purchase": 1}},
    ),
    "what": (lambda k: (("pv", "buy")[k % 2],), {"event": "what", "weights": {"pv": 1, "buy": 1}}),
    "clicked": (lambda k: (1,), {}),
    "quantity": (lambda k: (1 + k % 4,), {"weight": "quantity"}),
    "colour": (lambda k: (("red", "blue")[k % 2],), {}),
    "day": (lambda k: (1 + k % 7,), {}),  # a few evenly spaced numbers, but no rating
}


@pytest.mark.parametrize("column", EVENTS)
def test_a_log_without_ratings_is_one_of_choices(column: str, tmp_path: Path) -> None:
    more, events = EVENTS[column]
    rows = [(*row[:2], 1_600_000_000 + k % 7, *more(k)) for k, row in enumerate(log_rows())]
    header = "user,item,timestamp" + (f",{column}" if column else "")
    found = inspect_files([write(tmp_path / "log.csv", header, rows)])
    assert not found.gaps
    schema = tomllib.loads(found.text)
    assert schema["target"] == {"kind": "choice"}
    log = {name: value for name, value in schema["interactions"].items() if name not in ("file", "context")}
    assert log == {"user": "user", "item": "item", "time": "timestamp", **events}
    assert not schema["interactions"].get("context")
    assert "every row is a choice" in found.text
    found.write(tmp_path / "schema.toml")
    data = paml.prepare("tables", tmp_path, tmp_path / "out", cold_share=1)
    assert data.schema.target.kind == "choice"


def test_errors(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", "user,item,rating", log_rows())
    other = write(tmp_path / "other.csv", "a,b", [(f"x{k}", k % 3) for k in range(9)])
    (tmp_path / "packed.csv").write_bytes(gzip.compress(b"user,item\n"))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "cr.csv").write_text(log.read_text().replace("\n", "\r"), newline="")
    (tmp_path / "binary.csv").write_bytes(b"a\x00b" * 9)
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1" + b"x" * 50)
    for files, message in (
        ([tmp_path / "none.csv"], "none.csv: no such file; check the path"),
        ([tmp_path], "its Parquet files cannot be read as one table"),
        ([tmp_path / "packed.csv"], "packed.csv: is a gzip file, not text; unpack it first"),
        ([tmp_path / "empty.csv"], "empty.csv: is empty"),
        ([tmp_path / "cr.csv"], "cr.csv: has lines that end in carriage returns alone"),
        ([tmp_path / "binary.csv"], "binary.csv: is not a text file"),
        ([tmp_path / "damaged.parquet"], "damaged.parquet: is a damaged Parquet file"),
        ([write(tmp_path / "one.csv", "user", [(1,), (2,)])], "one.csv: has one column only"),
        ([write(tmp_path / "head.csv", "user,item,rating", [])], "head.csv: has no rows that can be read"),
        ([log, tmp_path / "." / "log.csv"], "is given twice; give each file once"),
        ([log] * 4, "4 files; give one to three"),
        ([], "0 files; give one to three"),
        ([log, other], "nothing connects log.csv and other.csv"),
        ([write(tmp_path / "twice.csv", "user,item,item", log_rows())], "twice.csv: has the column 'item' twice"),
    ):
        with pytest.raises(PamlError, match=message) as error:
            paml.inspect(files)
        assert "\n" not in str(error.value)


def test_command_line(tables: Path, tmp_path: Path) -> None:
    names, out, runner = [str(tables / name) for name in FILES], tables / "schema.toml", CliRunner()
    out.unlink()
    shown = runner.invoke(app, ["data", "inspect", *names])
    assert (shown.exit_code, shown.stderr) == (0, "")
    written = runner.invoke(app, ["data", "inspect", *names, "--out", str(out)])
    assert written.stdout.endswith(f"paml data prepare tables --schema {out}\n")
    assert out.read_text() == shown.stdout.replace(f"{tables.resolve()}/", "")  # printed: absolute paths
    again = runner.invoke(app, ["data", "inspect", *names, "--out", str(out)])
    assert str(again.exception) == f"{out}: already exists; choose another file, or remove it first"
    rows = [(*row[:2], k / 7) for k, row in enumerate(log_rows())]
    lost = write(tmp_path / "log.csv", "user,item,rating", rows)
    gap = runner.invoke(app, ["data", "inspect", str(lost)])
    assert (gap.exit_code, gap.stderr.startswith("warning: target: 'rating' does not hold")) == (0, True)


@pytest.mark.slow
@pytest.mark.skipif("PAML_DATA_HOME" not in os.environ, reason="PAML_DATA_HOME names no folder with the archives")
def test_coupons(tmp_path: Path) -> None:
    archive = Path(os.environ["PAML_DATA_HOME"]) / "in-vehicle-coupon.zip"
    if not archive.is_file():
        pytest.skip(f"{archive.name} is not in PAML_DATA_HOME")
    zipfile.ZipFile(archive).extractall(tmp_path)
    rows = pl.read_csv(tmp_path / "in-vehicle-coupon-recommendation.csv", infer_schema=False).drop_nulls("Y")
    profile = rows.columns[7:20]
    rows.with_columns(user=pl.struct(profile).rle_id()).write_csv(tmp_path / "coupons.csv")
    guessed, data, text = round_trip(tmp_path, tmp_path / "coupons.csv", drop_invalid_profiles=False)
    assert guessed["target"] == {"kind": "click"}
    assert {role: guessed["interactions"][role] for role in ("user", "item", "target")} == {
        "user": "user",
        "item": "coupon",
        "target": "Y",
    }
    assert set(guessed["users"]["fields"]) == set(profile) - {"car"}
    assert guessed["interactions"]["context"]["hour"] == {"kind": "categorical", "column": "time"}
    assert guessed["items"]["fields"] == {"coupon_type": {"kind": "categorical", "column": "coupon"}}
    assert "left out: 99% of the values are blank" in text
    assert (data.manifest.rules[0].kept, data.manifest.users, data.manifest.items) == (587, 587, 5)


@pytest.mark.parametrize(("words", "name"), [(("True", "False"), "is_click"), (("y", "n"), "liked_it")])
def test_yes_and_no_in_words_are_a_gap(words: tuple[str, str], name: str, tmp_path: Path) -> None:
    """And not every row a choice."""
    rows = [(u, i, words[r > 3]) for u, i, r in log_rows()]
    found = inspect_files([write(tmp_path / "log.csv", f"user,item,{name}", rows)])
    assert f"'{name}' says yes or no in words: write 1 and 0" in str(found.gaps)
    assert 'kind = "choice"' not in found.text


def test_dates_of_an_unknown_form_are_no_input(tmp_path: Path) -> None:
    days = [datetime(2021, 1, 1) + timedelta(days=k) for k in range(90)]
    rows = log_rows(lambda k, u, i: f"{days[k % 90]:%d of %B %Y}")
    found = inspect_files([write(tmp_path / "log.csv", "user,item,rating,date", rows)])
    assert "'date' is named like a time" in str(found.doubts)
    assert "have no form that is read" in found.text
    assert not tomllib.loads(found.text)["interactions"].get("context")


def test_limits_are_not_rounded() -> None:
    """A limit is a value that occurs: rounded, it would exclude itself."""
    found = [_value(number) for number in (1_234_566.0, 2_345_674.0, 0.125, 10.0, 1e-7)]
    assert found == ["1234566", "2345674", "0.125", "10", "1e-07"]


def test_a_scale_in_single_precision(tmp_path: Path) -> None:
    """8.9 is 8.8999996 there."""
    frame = pl.DataFrame(log_rows(), ["user", "item", "score"], orient="row")
    scores = pl.Series([(k % 101) / 10 for k in range(len(frame))], dtype=pl.Float32)
    frame.with_columns(score=scores).write_parquet(tmp_path / "log.parquet")
    schema, data, _ = round_trip(tmp_path, tmp_path / "log.parquet", min_interactions=2, cold_share=1)
    assert schema["target"] == {"kind": "rating", "low": 0, "high": 10, "step": 0.1}
    assert data.manifest.interactions == len(frame)
    user = paml.train(data, "ridge", out=tmp_path / "run", epochs=1, ensemble_size=1, choice_part=False)
    assert user.adapt(ratings={"5000": 8.9}).new_user.ratings[0].value == 8.9


@pytest.mark.parametrize("levels", [3, 7])
def test_a_scale_whose_step_has_no_end(levels: int, tmp_path: Path) -> None:
    """Thirds and sevenths."""
    frame = pl.DataFrame(log_rows(), ["user", "item", "score"], orient="row")
    frame = frame.with_columns(score=pl.Series([k % (levels + 1) / levels for k in range(len(frame))]))
    frame.write_parquet(tmp_path / "log.parquet")
    _, data, _ = round_trip(tmp_path, tmp_path / "log.parquet", min_interactions=2, cold_share=1)
    assert len(data.schema.target.levels) == levels + 1
    assert data.manifest.interactions == len(frame)


def test_ends_of_a_scale_in_single_precision(tmp_path: Path) -> None:
    """0.8 is 0.800000012 there, and 0.7 is 0.699999988."""
    frame = pl.DataFrame(log_rows(), ["user", "item", "score"], orient="row")
    scores = pl.Series([0.7 + (k % 5) / 10 for k in range(len(frame))], dtype=pl.Float32)
    frame.with_columns(score=scores).write_parquet(tmp_path / "log.parquet")
    _, data, _ = round_trip(tmp_path, tmp_path / "log.parquet", min_interactions=2, cold_share=1)
    assert data.manifest.interactions == len(frame)


def test_close_numbers_and_small_steps(tmp_path: Path) -> None:
    """Of weights that are next to each other no step is made; limits are as exact as the step asks for."""
    frame = pl.DataFrame(log_rows(), ["user", "item", "score"], orient="row")
    steps = pl.Series([k % 5 for k in range(len(frame))])
    frame = frame.with_columns(score=0.1234565 + 0.0004 * steps, weight=1 + 1e-8 * steps)
    frame.write_csv(tmp_path / "log.csv")
    schema, data, _ = round_trip(tmp_path, tmp_path / "log.csv", min_interactions=2, cold_share=1)
    assert schema["target"]["low"] == pytest.approx(0.1234565, abs=1e-12)
    assert data.manifest.interactions == len(frame)
