"""docs/paper.md lists every table and figure of the paper with the command that makes it: the test follows the list."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import paml
from commands import run
from docs.examples import BLOCKS, PROJECT, anchors_of

TABLES, FIGURES = 7, 11  # in the order of the LaTeX source
SMALL = ["--seeds", "1", "--baselines", "bias", "epochs=1"]


@dataclass(frozen=True)
class Element:
    """A line of the list."""

    name: str
    command: str
    """Empty for what is no result: a drawing, a list of settings."""
    files: tuple[str, ...]
    page: str
    anchor: str

    @property
    def data(self) -> str:
        """The data set of its command: `paml data describe ML`, `paml compare ML ...`."""
        words = shlex.split(self.command)
        return words[3] if words[1] == "data" else words[2]


def elements() -> list[Element]:
    text = (PROJECT / "docs" / "paper.md").read_text().split("## Every table and figure", 1)[1].split("\n## ")[0]
    found = []
    for line in re.findall(r"^\| ((?:Tab|Fig)\..*) \|$", text, flags=re.MULTILINE):
        name, _, command, files, page = (cell.strip() for cell in line.split(" | "))
        link = re.fullmatch(r"\[[^]]+\]\(([^)#]+)#([^)]+)\)", page)
        assert link, page
        found.append(Element(name, command.strip("`–"), tuple(re.findall(r"`([^`]+)`", files)), link[1], link[2]))
    return found


ELEMENTS = elements()


def test_every_table_and_figure_is_listed_once() -> None:
    expected = [f"Tab. {n}" for n in range(1, TABLES + 1)] + [f"Fig. {n}" for n in range(1, FIGURES + 1)]
    assert [element.name for element in ELEMENTS] == expected


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_the_page_has_the_command_and_the_section(element: Element) -> None:
    page = (PROJECT / "docs" / element.page).resolve()
    assert element.anchor in anchors_of(page)
    if element.command:
        document = page.relative_to(PROJECT).as_posix()
        lines = [
            line.split("#")[0].strip()
            for block in BLOCKS
            if block.document == document and block.language == "sh"
            for line in block.source.splitlines()
        ]
        assert element.command in lines


def small_movielens(folder: Path, users: int = 120, films: int = 60) -> Path:
    """The official format, with as many users as tests of groups need; ratings follow the film and chance."""
    rng = np.random.default_rng(0)
    ages, zips = rng.choice([1, 18, 25, 35], users, p=[0.1, 0.2, 0.5, 0.2]), rng.zipf(1.7, users) % 90
    jobs = rng.zipf(1.6, users) % 20
    folder.mkdir()
    people = [f"{u}::{'MF'[int(rng.random() < 0.3)]}::{ages[u]}::{jobs[u]}::{10000 + zips[u]}" for u in range(users)]
    titles = [f"{i}::Film {i} ({1960 + i % 40})::{('Drama', 'Comedy', 'Action|War')[i % 3]}" for i in range(films)]
    ratings = [
        f"{u}::{i}::{int(np.clip(1 + i % 5 + rng.integers(-1, 2), 1, 5))}::{978300000 + i}"
        for u in range(users)
        for i in rng.choice(films, 8 + u % 16, replace=False)
    ]
    for name, lines in (("users", people), ("movies", titles), ("ratings", ratings)):
        (folder / f"{name}.dat").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("without_pdf")
def test_the_commands_make_the_files(tmp_path: Path) -> None:
    """MovieLens-1M's commands, with few users and one epoch."""
    paml.prepare("ml-1m", small_movielens(tmp_path / "raw"), tmp_path / "ML")
    own = [element for element in ELEMENTS if element.command and element.data == "ML"]
    for command in dict.fromkeys(element.command for element in own):
        words = shlex.split(command)[1:]
        done = run(*words, *(SMALL if words[0] == "compare" else []), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for element in own:
        for file in element.files:
            assert (tmp_path / file).stat().st_size > 100, f"{element.name}: {file}"
