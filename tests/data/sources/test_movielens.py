import shutil
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest

import paml
from paml.data.describe import describe
from paml.errors import PamlError
from paml.testing import SourceSuite
from realdata import real_file

USERS = [f"{u}::{'MF'[u % 2]}::{(1, 18, 25)[u % 3]}::{u % 4}::{10000 + u % 5}-00{u}" for u in range(1, 21)]
MOVIES = ["1::Toy Story (1995)::Animation|Comedy", "2::Café: the Film (1950)::Drama", "3::Heat (1995)::Action"]
RATINGS = [f"{u}::{m}::{1 + (u + m) % 5}::{978300000 + u + m}" for u in range(1, 21) for m in (1, 2, 3) if (u + m) % 4]
EXTRA = [
    "1::Toy Story::1995::G::x::Comedy::John Lasseter, Ash Brannon(co-director)::w::Tom Hanks, Tim Allen::p::u",
    "2::Café::1950::N/A::x::Drama::N/A::w::N/A::A plot.::u",
]


def write(path: Path, lines: list[str], encoding: str = "latin-1", end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode(encoding))


@pytest.fixture
def ml_1m(tmp_path: Path) -> Path:
    folder = tmp_path / "ml-1m"
    for name, lines in (("users", USERS), ("movies", MOVIES), ("ratings", RATINGS)):
        write(folder / f"{name}.dat", lines)
    return folder


class TestContract(SourceSuite):
    """A source of files keeps the contract that others' sources are held to."""

    name = "ml-1m"
    protocol: ClassVar = {"cold_share": 1}

    @pytest.fixture
    def path(self, ml_1m: Path) -> Path:
        return ml_1m


def test_ml_1m_with_and_without_extra(ml_1m: Path, tmp_path: Path) -> None:
    write(tmp_path / "movies_extrainfos.dat", EXTRA, "utf-8", "\r\n")
    bare = paml.prepare("ml-1m", ml_1m, tmp_path / "a", cold_share=1)
    assert "movies_extrainfos.dat" in bare.manifest.notes[0]
    assert [field.name for field in bare.schema.item] == ["title", "genre", "year"]
    full = paml.prepare("ml-1m", ml_1m, tmp_path / "b", extra=tmp_path / "movies_extrainfos.dat", cold_share=1)
    assert full.manifest.notes == ()
    items = full.items().collect()
    assert items["title"].to_list() == ["Toy Story (1995)", "Café: the Film (1950)", "Heat (1995)"]
    assert items["year"].to_list() == ["1995", "1950", "1995"]
    assert items["director"].to_list() == [["John Lasseter", "Ash Brannon"], None, None]
    assert items["actors"].to_list() == [["Tom Hanks", "Tim Allen"], None, None]
    archive = shutil.make_archive(str(tmp_path / "extra"), "zip", tmp_path, "movies_extrainfos.dat")
    zipped = paml.prepare("ml-1m", ml_1m, tmp_path / "c", extra=archive, cold_share=1)
    assert zipped.fingerprint == full.fingerprint


def test_a_regional_prefix_is_the_input_and_the_whole_zip_decides_the_groups(ml_1m: Path, tmp_path: Path) -> None:
    whole = paml.prepare("ml-1m", ml_1m, tmp_path / "a", cold_share=1)
    region = paml.prepare("ml-1m", ml_1m, tmp_path / "b", cold_share=1, zip_prefix=5)
    assert (whole.manifest.vocabulary["user.zip"], region.manifest.vocabulary["user.zip"]) == (15, 6)
    assert (whole.array("major") == region.array("major")).all()
    assert region.users().collect()["zip"][0] == whole.users().collect()["zip"][0]


def test_ml_100k(tmp_path: Path) -> None:
    folder = tmp_path / "ml-100k"
    write(folder / "u.user", [f"{u}|{20 + u % 3}|{'MF'[u % 2]}|other|{u:05d}" for u in range(1, 21)])
    flags = {1: "0|0|0|1|1|1" + "|0" * 13, 2: "1" + "|0" * 18}
    write(folder / "u.item", [f"{m}|Café {m} (199{m})|01-Jan-199{m}||http://x?{m}|{f}" for m, f in flags.items()])
    write(folder / "u.data", [f"{u}\t{m}\t{1 + (u + m) % 5}\t{874965758 + u}" for u in range(1, 21) for m in (1, 2)])
    items = paml.prepare("ml-100k", folder, tmp_path / "out", cold_share=1).items().collect()
    assert items["genre"].to_list() == [["Animation", "Children's", "Comedy"], []]
    assert items["title"].to_list() == ["Café 1 (1991)", "Café 2 (1992)"]


def test_a_later_release_has_no_profiles_and_a_note_about_it(tmp_path: Path) -> None:
    folder = tmp_path / "ml-latest-small"
    write(
        folder / "movies.csv", ["movieId,title,genres", '1,"One, the (1990)",A|B', "2,Two,(no genres listed)"], "utf-8"
    )
    log = [f"{u},{m},{0.5 * (1 + (u + m) % 10)},{10**9 + u}" for u in range(1, 21) for m in (1, 2)]
    write(folder / "ratings.csv", ["userId,movieId,rating,timestamp", *log], "utf-8", "\r\n")
    data = paml.prepare("ml-latest", folder, tmp_path / "out", cold_share=1)
    assert "the same for all users" in data.manifest.notes[0]
    assert data.schema.user == ()
    assert data.schema.target.levels[0] == 0.5
    assert data.items().collect()["genre"].to_list() == [["A", "B"], None]
    assert data.manifest.source.users_without_profile == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "ratings.dat",
            RATINGS[3],
            RATINGS[3].replace("::", ":"),
            r"ratings.dat line 4: 1 fields where 4 are expected",
        ),
        ("ratings.dat", RATINGS[3], "7::1::9::1", r"ratings.dat line 4: rating '9' is not a number from 1 to 5"),
        ("ratings.dat", RATINGS[3], "7::99::5::1", r"movies.dat: item '99' has interactions but no row"),
        ("users.dat", USERS[4], USERS[3], r"users.dat line 5: user '4' has more than one row"),
    ],
)
def test_bad_input(ml_1m: Path, tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    path = ml_1m / file
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode(), 1))
    for source in (ml_1m, Path(shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "ml-1m"))):
        with pytest.raises(PamlError, match=message):
            paml.prepare("ml-1m", source, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_an_unexpected_archive(ml_1m: Path, tmp_path: Path) -> None:
    for file in ml_1m.iterdir():
        file.rename(file.with_suffix(".csv"))
    archive = shutil.make_archive(str(tmp_path / "other"), "zip", ml_1m)
    with pytest.raises(PamlError, match=r"other.zip: has no file 'ratings.dat'; did you mean 'ratings.csv'"):
        paml.prepare("ml-1m", archive, tmp_path / "out")
    (tmp_path / "ratings.csv.gz").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(PamlError, match=r"ratings.csv.gz: is a gzip file, not a folder or zip archive"):
        paml.prepare("ml-1m", tmp_path / "ratings.csv.gz", tmp_path / "out")
    with pytest.raises(PamlError, match=r"the source 'ml-100k' takes no extra"):
        paml.prepare("ml-100k", ml_1m, tmp_path / "out", extra=ml_1m)


@pytest.mark.slow
def test_real_ml_1m(tmp_path: Path) -> None:
    extra = real_file("ml-1m-extrainfos.zip")
    data = paml.prepare("ml-1m", real_file("ml-1m.zip"), tmp_path / "all", extra=extra, cold_share=1)
    facts = describe(data)
    assert (facts["users"], facts["items"], facts["items_interacted"]) == (6040, 3883, 3706)
    assert facts["histogram"] == {"1": 56174, "2": 107557, "3": 261197, "4": 348971, "5": 226310}
    assert (facts["rows_per_user"]["0%"], facts["rows_per_user"]["100%"]) == (20, 2314)
    assert facts["repeated"] == 0
    items = data.items().collect()
    lacking = items.filter(pl.col("director").is_null() & pl.col("actors").is_null())["item"].to_list()
    assert {"860", "1795"} <= set(lacking)
    assert len(lacking) < 20
    cold = describe(paml.prepare("ml-1m", real_file("ml-1m.zip"), tmp_path / "cold"))
    assert (cold["users"], cold["items"], cold["interactions"]) == (4832, 3883, 428_185)
    assert cold["splits"] == {"train": 3382, "validation": 484, "test": 966}
    shares = {name: round(100 * share, 1) for name, share in cold["common_shares"].items()}
    assert shares == {"gender": 71.7, "age": 72.7, "occupation": 64.1, "zip": 58.3}
    assert cold["groups"]["major"] == pytest.approx(0.591, abs=5e-4)


@pytest.mark.slow
def test_an_archive_in_the_data_folder_is_used_without_asking(tmp_path: Path) -> None:
    real_file("ml-1m.zip")
    assert paml.prepare("ml-1m", out=tmp_path / "out").manifest.users == 4832
