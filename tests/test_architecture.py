"""The shape of the house: a package imports what the table allows and no more; every module says what it is for."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "paml"
MODULES = sorted(SOURCE.rglob("*.py"))
# any module may import these
GROUND = {"errors", "settings", "files", "locks", "progress", "terminal", "notebook", "registry"}
ROOT = ""  # the package's public names

# What each package may import besides the ground and itself; whatever is not here is forbidden.
ENGINE = {"data.schema"}
NETWORK = {"engine", "episodes", "data"}
METHODS = NETWORK | {"network"}
EVALUATION = {"methods", "episodes", "data"}
RECOMMEND = METHODS | {"methods"}
TRAINING = RECOMMEND | {"recommend", "evaluation"}
ALLOWED: dict[str, set[str]] = {
    "data": set(),
    "episodes": {"data"},
    "engine": ENGINE,
    "network": NETWORK,
    "methods": METHODS,
    "evaluation": EVALUATION,
    "baselines": {"evaluation", "engine", "episodes", "data"},
    "recommend": RECOMMEND,
    "training": TRAINING,
    "analysis": set(),
    "report": {"analysis"},
    "experiments": {"training", "baselines", "evaluation", "methods", "analysis", "report", "episodes", "data"},
    "serve": {"recommend", "training.run"},
    "testing": {*TRAINING, "training", "baselines", "experiments", ROOT},
    "cli": {*TRAINING, "training", "baselines", "analysis", "report", "experiments", "serve", ROOT},
}
# Modules of the root that others' packages load: each serves one neighbour, and nobody here imports them.
NEIGHBOURS: dict[str, set[str]] = {"lenskit": {"training.run", "recommend", "episodes", "data"}}
WITHOUT_TORCH = {"data", "analysis", "report", *GROUND}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(source: str) -> set[str]:
    """Everything that a source text imports, at the top or inside functions: modules where these are named."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            base = node.module or ""
            folder = SOURCE.parent / base.replace(".", "/")
            names = {alias.name for alias in node.names}
            modules = {name for name in names if (folder / f"{name}.py").exists() or (folder / name).is_dir()}
            found |= {f"{base}.{name}" for name in modules}
            if modules != names:
                found.add(base)
    return found


def ours(names: set[str]) -> set[str]:
    inside = {name for name in names if name == "paml" or name.startswith("paml.")}
    return {name.removeprefix("paml").removeprefix(".") for name in inside}


def package_of(name: str) -> str:
    return name.partition(".")[0]


def forbidden_imports(name: str, source: str) -> set[str]:
    """What a module imports and may not."""
    package = package_of(name)
    if package in {ROOT, "__main__"}:
        return set()  # the root names what is public, and `python -m paml` is the command line
    allowed = (ALLOWED | NEIGHBOURS).get(package, set()) | GROUND

    def may(other: str) -> bool:
        if package_of(other) == package and package not in GROUND:
            return True
        return any(other == entry or (entry != ROOT and other.startswith(f"{entry}.")) for entry in allowed)

    wrong = {other for other in ours(imports_of(source)) if not may(other)}
    heavy = {other for other in imports_of(source) if package_of(other) in {"torch", "safetensors"}}
    return wrong | (heavy if package in WITHOUT_TORCH else set())


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_package_imports_what_the_table_allows(path: Path) -> None:
    assert not forbidden_imports(module_name(path), path.read_text())


def test_a_forbidden_import_is_found() -> None:
    assert forbidden_imports("data.schema", "def f():\n    from paml.episodes import tasks\n") == {"episodes.tasks"}
    assert forbidden_imports("errors", "import paml.cli") == {"cli"}
    assert forbidden_imports("serve.routes", "import paml") == {""}
    assert forbidden_imports("serve.routes", "from paml.training.train import train") == {"training.train"}
    assert forbidden_imports("report.page", "import torch.nn") == {"torch.nn"}
    assert forbidden_imports("engine.adapt", "from paml.data.dataset import Dataset") == {"data.dataset"}
    assert not forbidden_imports("engine.adapt", "from paml.data.schema import Target")


def test_every_package_is_in_the_table_and_the_root_is_small() -> None:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert packages == set(ALLOWED)
    assert {path.stem for path in SOURCE.glob("*.py")} == {"__init__", "__main__", *GROUND, *NEIGHBOURS}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_say_what_they_are_for_and_stay_small(path: Path) -> None:
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring
    assert len(docstring) > 10
    assert len(text.splitlines()) <= 400


@pytest.mark.parametrize("path", [path for path in MODULES if path.name == "__init__.py"], ids=module_name)
def test_a_package_names_its_modules(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    inside = [
        other.stem if other.is_file() else other.name
        for other in sorted(path.parent.iterdir())
        if (other.suffix == ".py" and other.name != "__init__.py") or (other / "__init__.py").exists()
    ]
    if path.parent == SOURCE:
        return  # README shows the packages
    missing = [name for name in inside if not re.search(rf"\b{name}\b", docstring)]
    assert not missing, f"the docstring of {module_name(path)} does not name {missing}"


def test_readme_shows_every_package() -> None:
    readme = (SOURCE.parent.parent / "README.md").read_text()
    tree = readme[readme.index("src/paml/") :]
    for package in ALLOWED:
        assert f"  {package}/" in tree, f"README's tree lacks {package}/"
