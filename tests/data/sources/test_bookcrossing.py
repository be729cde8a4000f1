from pathlib import Path

import polars as pl
import pytest

import paml
from paml.data.describe import describe
from paml.data.resplit import resplit
from paml.data.sources import LoadRequest
from paml.data.sources.bookcrossing import BookCrossingSettings, load
from paml.errors import PamlError
from realdata import real_file
from smallbooks import write_readers

PLACES = ["rome, lazio, italy", "york, england, united kingdom", "singapore, n/a, singapore"]
BOOKS = [("0001", 'The \\"Quoted\\" Book', "A; B", "1999", "Smith &amp; Sons"), ("0002", "Plain", "C", "0", "D")]


def old_form(folder: Path, users: int = 20) -> Path:
    """The original dump: latin-1, semicolons, backslash escapes, CRLF, and a line break inside a location."""
    folder.mkdir(exist_ok=True)
    people = [f'"{u}";"{PLACES[u % 3]}";"{20 + u}"' for u in range(users)]
    people += ['"100";"cernusco s\n, milan, italy";NULL', '"101";"m\xfcnchen, bayern, germany";"300"']
    people += ['"102";"x, ?l\xb9skie, poland";"30"', '"103";"lisbon, , portugal";"30"']
    head = '"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher";"Image-URL-S"'
    books = [";".join(f'"{part}"' for part in (*book, "http://x")) for book in BOOKS]
    ids = [*range(users), 100, 101, 102, 103]
    log = [f'"{u}";"000{i}";"{(u + i) % 11}"' for u in ids for i in (1, 2, 3) if (u + i) % 11 or u % 2]
    for name, lines in (
        ("BX-Users", ['"User-ID";"Location";"Age"', *people]),
        ("BX-Books", [head, *books]),
        ("BX-Book-Ratings", ['"User-ID";"ISBN";"Book-Rating"', *log]),
    ):
        (folder / f"{name}.csv").write_bytes("".join(line + "\r\n" for line in lines).encode("latin-1"))
    return folder


def new_form(folder: Path, old: Path) -> Path:
    """The later form of the same data: UTF-8, commas, doubled quotes, blank ages."""
    folder.mkdir()
    for name in ("Users", "Books", "Book-Ratings"):
        text = (old / f"BX-{name}.csv").read_bytes().decode("latin-1").replace("\r\n", "\n")
        text = text.replace('\\"', '""').replace('";"', '","').replace('";NULL', '",')
        (folder / f"{name.removeprefix('Book-')}.csv").write_text(text, encoding="utf-8")
    return folder


def test_both_forms_give_the_same_data(tmp_path: Path) -> None:
    old = old_form(tmp_path / "old")
    one = paml.prepare("bookcrossing", old, tmp_path / "a", cold_share=1)
    two = paml.prepare("bookcrossing", new_form(tmp_path / "new", old), tmp_path / "b", cold_share=1)
    for table in ("users", "items", "interactions"):
        assert getattr(one, table)().collect().equals(getattr(two, table)().collect())


def test_cleaning(tmp_path: Path) -> None:
    data = paml.prepare("bookcrossing", old_form(tmp_path / "old"), tmp_path / "a", cold_share=1)
    users = data.users().collect()
    assert set(users["user"]) <= {str(u) for u in range(20)}  # blank age, age 300, garbled state, blank state
    assert set(users["state"]) == {"lazio", "england", "n/a"}
    items = data.items().collect()
    assert items["item"].to_list() == ["0001", "0002", "0003"]
    assert items.row(0, named=True) == {
        "item": "0001",
        "title": 'The "Quoted" Book',
        "year": "1999",
        "publisher": "Smith & Sons",
        "author": "A; B",
    }
    assert items["year"].to_list() == ["1999", None, None]
    assert data.interactions().collect()["target"].min() == 1
    assert "implicit ratings (0) left out" in data.manifest.notes[0]
    assert data.manifest.notes[1].startswith("1 rated books have no description")


def test_a_record_over_two_lines_can_be_kept(tmp_path: Path) -> None:
    data = paml.prepare(
        "bookcrossing", old_form(tmp_path / "old"), tmp_path / "a", cold_share=1, drop_invalid_profiles=False
    )
    users = data.users().collect()
    assert users.filter(users["user"] == "100").select("state", "country", "age").row(0) == ("milan", "italy", None)


def test_implicit_ratings_count_as_log_data(tmp_path: Path) -> None:
    folder = old_form(tmp_path / "old")
    path = folder / "BX-Book-Ratings.csv"
    path.write_bytes(path.read_bytes() + b"".join(b'"4";"0009%d";"0"\r\n' % k for k in range(9)))
    data = paml.prepare("bookcrossing", folder, tmp_path / "a", cold_share=0.9)
    assert "4" not in set(data.users().collect()["user"])


def test_the_reading_paper_takes_the_least_active_of_users_with_five_explicit_ratings(tmp_path: Path) -> None:
    folder = write_readers(tmp_path / "raw")
    data = paml.prepare("bookcrossing", folder, tmp_path / "a", reading="paper")
    users = data.users().collect().sort(pl.col("user").cast(pl.Int64))
    assert users["user"].to_list() == ["5", "6", "8", "9"]  # of 5, 6, 8, 9 and 10; implicit ratings do not count
    assert users["support_rows"].to_list() == [4, 4, 6, 7]
    assert data.manifest.items == 55
    assert [rule.rule for rule in data.manifest.rules][-1] == "80% with the least log data"
    assert data.manifest.source.settings == {"reading": "paper"}


def test_the_reading_log_ranks_everybody_by_all_ratings(tmp_path: Path) -> None:
    folder = write_readers(tmp_path / "raw")
    given, default = (
        paml.prepare("bookcrossing", folder, tmp_path / name, **settings)
        for name, settings in (("a", {"reading": "log"}), ("b", {}))
    )
    assert set(given.users().collect()["user"]) == {"2", "3", "4", "5", "8", "9"}  # not 6 and 10, who have most
    assert given.fingerprint == default.fingerprint
    assert default.manifest.source.settings == {}


def test_a_protocol_setting_that_is_given_is_stronger_than_the_reading(tmp_path: Path) -> None:
    folder = write_readers(tmp_path / "raw")
    data = paml.prepare("bookcrossing", folder, tmp_path / "a", reading="paper", min_interactions=8, cold_share=1)
    assert set(data.users().collect()["user"]) == {"8", "9", "10"}
    assert data.manifest.protocol.cold_rule == "last"
    again = resplit(data, 1, tmp_path / "b").users().collect()
    assert again.sort("user")["support_rows"].to_list() == [8, 6, 7]


def test_an_unknown_reading_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PamlError, match="setting 'reading' is 'text'; expected 'log' or 'paper'"):
        paml.prepare("bookcrossing", tmp_path, tmp_path / "a", reading="text")


def test_bad_lines_are_named_with_their_original_number(tmp_path: Path) -> None:
    folder = old_form(tmp_path / "old")
    path = folder / "BX-Users.csv"
    path.write_bytes(path.read_bytes() + b'"104";"a, b, c"\r\n')
    with pytest.raises(
        PamlError, match=r"BX-Users.csv line 27: quotes that do not close, or not the 3 fields expected"
    ):
        paml.prepare("bookcrossing", folder, tmp_path / "a")
    assert paml.prepare("bookcrossing", folder, tmp_path / "a", skip_bad_lines=True).manifest.source.bad_lines == 1


@pytest.mark.slow
def test_real_book_crossing(tmp_path: Path) -> None:
    archive = real_file("BX-CSV-Dump.zip")
    (tmp_path / "work").mkdir()
    raw = load(LoadRequest(archive, BookCrossingSettings(), tmp_path / "work"))
    ratings, users, items = (frame.collect() for frame in (raw.interactions, raw.users, raw.items))
    assert (len(ratings), ratings["user"].n_unique(), ratings["item"].n_unique()) == (433_671, 77_805, 185_973)
    assert (ratings["target"].min(), ratings["target"].max()) == (1, 10)
    assert (len(users), users["age"].count(), users["_log"].sum()) == (278_858, 168_096, 1_149_780)
    assert len(items) == 185_973
    assert raw.notes[0].startswith("716,109 implicit ratings")
    data = paml.prepare("bookcrossing", archive, tmp_path / "BX")
    facts = describe(data)
    assert (facts["users"], facts["items"]) == (7814, 185_973)
    assert facts["groups"]["major"] == pytest.approx(0.668, abs=5e-4)
    assert data.fingerprint == "2fc8ea1ec34c5d6c925ffeba9f8e77c3acf2c573d93c57dd097a902de692a038"


@pytest.mark.slow
def test_real_book_crossing_by_the_reading_nearest_to_the_paper(tmp_path: Path) -> None:
    data = paml.prepare("bookcrossing", real_file("BX-CSV-Dump.zip"), tmp_path / "BX", reading="paper")
    facts = describe(data)
    assert (facts["users"], facts["items"], facts["interactions"]) == (7724, 185_973, 81_648)
    assert facts["groups"]["major"] == pytest.approx(0.734, abs=5e-4)
    users = data.users().collect()
    assert users["query_rows"].mean() == pytest.approx(2.50, abs=5e-3)
    assert users.select(pl.sum_horizontal("support_rows", "query_rows").min()).item() == 5


def test_readers_without_a_profile_are_kept(tmp_path: Path) -> None:
    folder = old_form(tmp_path / "old")
    with (folder / "BX-Book-Ratings.csv").open("a") as log:
        log.write('"999";"0001";"5"\r\n"999";"0002";"6"\r\n')
    data = paml.prepare("bookcrossing", folder, tmp_path / "a", cold_share=1)
    assert "999" in data.users().collect()["user"].to_list()
    assert data.manifest.source.users_without_profile == 1
