"""The package's public names: imported when they are used, known to type checkers, and nothing heavy before."""

import ast
import subprocess
import sys
from importlib.metadata import version
from inspect import signature
from pathlib import Path

import pytest

import paml
from paml.cli.train import train_command, tune_command

HEAVY = {"torch", "polars", "scipy", "matplotlib", "pydantic"}


def names_for_type_checkers() -> dict[str, str]:
    """What the root imports under `if TYPE_CHECKING`, by name."""
    tree = ast.parse(Path(paml.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def test_type_checkers_see_what_is_imported() -> None:
    assert names_for_type_checkers() == paml.MODULES
    assert sorted({*paml.MODULES, "load", "open_data", "register"}) == paml.__all__


@pytest.mark.parametrize("name", paml.__all__)
def test_every_public_name_resolves(name: str) -> None:
    found = getattr(paml, name)
    assert found.__name__ == name
    assert found.__doc__


def test_dir_version_and_unknown_names() -> None:
    assert {*paml.__all__, "__version__"} == set(dir(paml))
    assert paml.__version__ == version("paml")
    with pytest.raises(AttributeError, match="module 'paml' has no attribute 'prepaer'"):
        paml.prepaer  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'prepaer'"):
        from paml import prepaer  # type: ignore[attr-defined]  # noqa: F401


def test_the_default_method_is_the_same_everywhere() -> None:
    """The command line repeats it, since it must not import the library before a command runs."""
    functions = (paml.train, paml.tune, train_command, tune_command)
    assert {signature(function).parameters["method"].default for function in functions} == {"ridge"}


def test_import_alone_loads_nothing_heavy() -> None:
    program = f"import sys, paml; print(*({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
