"""Tables as people have them: MovieLens-100K's own files, several columns of 0 and 1, dirty numbers, odd blanks."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import paml
from paml.cli import app
from paml.data.infer.render import inspect_files
from paml.errors import PamlError

JOBS = ("technician", "writer", "student", "none", "educator")
ZIPS = ("85711", "05201", "T8H1N", "94043")
MONTHS = ("Jan", "Feb", "Aug")


@pytest.fixture
def movielens(tmp_path: Path) -> Path:
    """Files in exactly the format of ml-100k: no header, tabs or bars, ISO-8859-1, 19 columns of flags."""
    folder = tmp_path / "ml-100k"
    folder.mkdir()
    people = [f"{u}|{(7, 24, 33, 53)[u % 4]}|{'MF'[u % 3 == 0]}|{JOBS[u % 5]}|{ZIPS[u // 3 % 4]}" for u in range(1, 61)]
    (folder / "u.user").write_text("\n".join(people) + "\n")
    films = []
    for i in range(1, 41):
        flags = "|".join(str(int(i % 7 == k or i % 5 == k)) for k in range(19))
        address = f"http://us.imdb.com/M/title-exact?Film%20{i}%20(1995)"
        released = "" if i == 5 else f"{1 + i % 28:02d}-{MONTHS[i % 3]}-{1990 + i % 7}"
        films.append(f"{i}|Cité {i}, La (1995)|{released}||{address}|{flags}")
    (folder / "u.item").write_bytes(("\n".join(films) + "\n").encode("iso-8859-1"))
    log = [
        f"{u}\t{i}\t{1 + (u * 7 + i * 3 + u * i) % 5}\t{874724710 + 977 * u + i}"
        for u in range(1, 61)
        for i in range(1, 41)
        if (u + i) % 4
    ]
    (folder / "u.data").write_text("\n".join(log) + "\n")
    return folder


def prepared(folder: Path, text: str, out: Path, **settings: Any) -> paml.Dataset:
    (folder / "schema.toml").write_text(text)
    return paml.prepare("tables", schema=folder / "schema.toml", out=out, **{"cold_share": 1, **settings})


def test_movielens_100k(movielens: Path, tmp_path: Path) -> None:
    text = paml.inspect([movielens / name for name in ("u.data", "u.user", "u.item")])
    schema = tomllib.loads(text)
    assert schema["users"]["separator"] == schema["items"]["separator"] == "|"
    assert schema["items"]["encoding"] == "latin-1"
    assert "dates like 02-Feb-1991" in text
    assert "c3" not in schema["items"]["fields"]
    assert "blanks" not in schema["users"]  # "none" is an occupation
    data = prepared(movielens, text, tmp_path / "out")
    assert (data.manifest.users, data.manifest.items) == (60, 40)
    users, items = data.users().collect(), data.items().collect()
    assert items["c2"][0] == "Cité 1, La (1995)"
    assert set(users["c4"]) == set(JOBS)
    assert set(users["c5"]) == set(ZIPS)
    assert "7" in users["c2"].to_list()  # a child is somebody, too
    assert users["c2"].null_count() == 0


def test_recbole_files_are_recognised_by_their_header(tmp_path: Path) -> None:
    log = [f"{u}\t{i}\t{1 + (u * 7 + i * 3 + u * i) % 5}" for u in range(20) for i in range(10)]
    (tmp_path / "a.inter").write_text("\n".join(["user_id:token\titem_id:token\trating:float", *log]) + "\n")
    (tmp_path / "a.user").write_text("\n".join(["user_id\tjob", *(f'{u}\t"{JOBS[u % 5]}"' for u in range(20))]) + "\n")
    schema = tomllib.loads(paml.inspect([tmp_path / "a.inter", tmp_path / "a.user"]))
    assert schema["interactions"]["user"] == "user_id"
    data = prepared(tmp_path, paml.inspect([tmp_path / "a.inter", tmp_path / "a.user"]), tmp_path / "out")
    assert data.users().collect()["job"].null_count() == 0
    assert set(data.users().collect()["job"]) == set(JOBS)


def clicks(path: Path, names: str = "visitor,banner,is_mobile,converted,weekend") -> Path:
    rows = [
        f"{u},{i},{(u + i) % 2},{int((u * 7 + i * 3 + u * i) % 3 == 0)},{int((u * i) % 7 < 2)}"
        for u in range(40)
        for i in range(12)
    ]
    path.write_text("\n".join([names, *rows]) + "\n")
    return path


def test_several_columns_could_be_the_target(tmp_path: Path) -> None:
    file = clicks(tmp_path / "log.csv")
    found = inspect_files([file])
    (doubt,) = found.doubts
    assert all(f"'{name}'" in doubt for name in ("is_mobile", "converted", "weekend"))
    assert f"# To decide: {doubt}" in found.text
    told = CliRunner().invoke(app, ["data", "inspect", str(file)])
    assert f"warning: {doubt}" in told.stderr
    named = inspect_files([file], target="converted")
    assert tomllib.loads(named.text)["interactions"]["target"] == "converted"
    assert named.doubts == []
    told = CliRunner().invoke(app, ["data", "inspect", str(file), "--target", "converted"])
    assert 'target = "converted"' in told.stdout
    assert not told.stderr
    assert "is_mobile" not in tomllib.loads(named.text)["interactions"].get("context", {})


def test_a_fitting_name_decides_and_the_others_are_said(tmp_path: Path) -> None:
    found = inspect_files([clicks(tmp_path / "log.csv", "visitor,banner,is_mobile,clicked,bought")])
    assert tomllib.loads(found.text)["interactions"]["target"] == "clicked"
    assert found.doubts
    assert "'bought'" in found.doubts[0]


def test_a_target_that_cannot_be_one(tmp_path: Path) -> None:
    with pytest.raises(PamlError, match=r"log.csv: has no column 'convrted'; did you mean 'converted'\?"):
        paml.inspect(clicks(tmp_path / "log.csv"), target="convrted")
    files = dirty(tmp_path)
    with pytest.raises(PamlError, match="'user' cannot be the target: it is a key of users or items"):
        paml.inspect(files, target="user")
    files[0].write_text("".join(f"{line},w{line[-1]}\n" for line in files[0].read_text().splitlines()))
    with pytest.raises(PamlError, match="'wg' cannot be the target: its values are not a few evenly spaced numbers"):
        paml.inspect(files, target="wg")


def dirty(folder: Path) -> list[Path]:
    """Ages, birth years and prices as forms and spreadsheets have them, and a rating that is a word once."""
    odd = {3: "None", 7: "NULL", 11: "n/a", 15: "abc"}
    years = [odd.get(u, str(1950 + u % 40)) for u in range(60)]
    ages = [{4: "abc", 9: "-1", 12: "999"}.get(u, str(7 + u % 50)) for u in range(60)]
    people = [f"{u},{years[u]},{ages[u]},{'ab'[u % 2]}" for u in range(60)]
    films = [f"{i},{('free', 'call us')[i % 2] if i < 3 else f'{i}.5'}" for i in range(40)]
    log = [f"{u},{i},{1 + (u * 7 + i * 3 + u * i) % 5}" for u in range(60) for i in range(40) if (u + i) % 3]
    log[100] = "1,2,five"
    tables = {"log.csv": ["user,item,rating", *log], "users.csv": ["user,born,age,side", *people]}
    tables["items.csv"] = ["item,price", *films]
    for name, lines in tables.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return [folder / name for name in tables]


def test_dirty_numbers_need_no_pattern(tmp_path: Path) -> None:
    text = paml.inspect(dirty(tmp_path))
    schema = tomllib.loads(text)
    fields = schema["users"]["fields"]
    assert set(schema["users"]["blanks"]) == {"None", "NULL", "n/a"}
    assert fields["born"] == {"kind": "numeric", "lenient": True}
    assert fields["age"] == {"kind": "categorical", "minimum": 0, "maximum": 120}
    assert schema["items"]["fields"]["price"] == {"kind": "numeric", "lenient": True}
    assert "'abc' count as not known" in text
    assert "1 rows have no number there" in text
    data = prepared(tmp_path, text, tmp_path / "out", skip_bad_lines=True)
    users, items = data.users().collect().sort(pl.col("user").cast(int)), data.items().collect()
    assert len(users) == 60  # nobody is dropped for a blank
    assert users.filter(pl.col("born").is_null())["user"].to_list() == ["3", "7", "11", "15"]
    assert users.filter(pl.col("age").is_null())["user"].to_list() == ["4", "9", "12"]
    assert items.filter(pl.col("price").is_null())["item"].to_list() == ["0", "1", "2"]
    assert not set(data.vocabulary.common.get("born", [])) & {"None", "NULL", "n/a"}


def test_lenient_is_for_numbers(tmp_path: Path) -> None:
    text = paml.inspect(dirty(tmp_path)).replace(
        'side = "categorical"', 'side = { kind = "categorical", lenient = true }'
    )
    with pytest.raises(PamlError, match="lenient is for numeric fields"):
        prepared(tmp_path, text, tmp_path / "out")
    strict = paml.inspect(dirty(tmp_path)).replace(", lenient = true", "")
    log = (tmp_path / "log.csv").read_text()
    (tmp_path / "log.csv").write_text(log.replace("five", "5"))
    with pytest.raises(PamlError, match=r"price 'free' is not a number|born 'abc' is not a number"):
        prepared(tmp_path, strict, tmp_path / "out")


@pytest.mark.parametrize("where", [".", "schemas", "data"])
def test_a_printed_schema_is_found_by_prepare_wherever_the_shell_writes_it(tmp_path: Path, where: str) -> None:
    for name in ("data", "schemas"):
        (tmp_path / name).mkdir()
    dirty(tmp_path / "data")
    schema = tmp_path / where / "schema.toml"
    command = [sys.executable, "-m", "paml", "data", "inspect", "data/log.csv", "data/users.csv", "data/items.csv"]
    with schema.open("w") as file:
        subprocess.run(command, cwd=tmp_path, stdout=file, check=True)
    paml.prepare("tables", schema=schema, out=tmp_path / "out", skip_bad_lines=True)
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    elsewhere = tmp_path / "schemas" / "piped.toml"
    elsewhere.write_text(piped)
    paml.prepare("tables", schema=elsewhere, out=tmp_path / "piped", skip_bad_lines=True)


def test_one_path_is_enough_and_anything_else_is_said(tmp_path: Path) -> None:
    log = dirty(tmp_path)[0]
    assert paml.inspect(str(log)) == paml.inspect(log) == paml.inspect([log])
    with pytest.raises(PamlError, match="3 is not a path"):
        paml.inspect([log, 3])  # type: ignore[list-item]
