"""Messages: the library names its arguments, the command line adds its options."""

import ast
import re
from pathlib import Path

import pytest

import paml
from commands import run

SOURCE = Path(paml.__file__).parent
LIBRARY = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in {"cli", "report"}]


def complaint(*arguments: object, cwd: Path) -> str:
    done = run(*arguments, cwd=cwd)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_the_option_of_an_argument_is_added(tmp_path: Path, tables: Path) -> None:
    prepare = ["data", "prepare"]
    for arguments, message in (
        ([*prepare, "taobao"], "the source 'taobao' needs a folder or archive; give the path of one (--from)"),
        ([*prepare, "synthetic", "--from", "."], "the source 'synthetic' takes no path; leave it out (--from)"),
        ([*prepare, "ml-100k", "--extra", "."], "the source 'ml-100k' takes no extra; leave it out (--extra)"),
        ([*prepare, "tables", "--schema", "x"], "x: no such file or folder; check its name (--schema)"),
        ([*prepare, "synthetic", "--out", tables], f"{tables}: already exists; choose another folder, or remove it "),
        (
            ["data", "inspect", tables / "ratings.csv", "--out", tables],
            f"{tables}: already exists; choose another file",
        ),
        (
            ["data", "inspect", tables / "ratings.csv", "--out", "missing/x.toml"],
            "missing/x.toml: cannot be written (No such file or directory); choose another file (--out)",
        ),
    ):
        found = complaint(*arguments, cwd=tmp_path)
        assert found.startswith(f"error: {message}")
        assert found.endswith(")")
    (tables / "ratings.csv").write_text("uid,movie,stars,when\n1,2,x,3\n")
    found = complaint(*prepare, "tables", "--from", tables, cwd=tmp_path)
    assert found.endswith("; correct it, or skip bad lines (--skip-bad-lines)")


def test_no_option_is_added_where_there_is_none(tmp_path: Path) -> None:
    assert complaint("evaluate", "R", cwd=tmp_path) == "error: R: no such run; give a folder made by 'paml train'"


def test_a_folder_that_is_taken_can_be_resumed(tmp_path: Path, world: paml.Dataset) -> None:
    (tmp_path / "R").mkdir()
    (tmp_path / "R" / "file").touch()
    found = complaint("train", world.path, "--out", "R", "hidden=8", cwd=tmp_path)
    assert found == "error: R: already exists; choose another folder, or reuse what is in it (--resume)"


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_library_names_no_options(path: Path) -> None:
    texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    assert not [text for text in texts if isinstance(text, str) and re.search(r"(?<![\w-])--[a-z]", text)]
