"""The shape of the house: imports point one way, every module says what it is for."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "paml"
MODULES = sorted(SOURCE.rglob("*.py"))

# From the ground up: a module may import from its own floor or from below, never from above.
FLOORS = [
    ["errors"],
    ["settings", "progress", "files"],
    ["data.schema"],
    ["data.vocabulary", "data.protocol", "data.item_rates", "data.sources"],
    ["data.prepared"],
    ["data.write", "data.tasks", "data.features", "data.sample"],
    ["data.columns"],
    ["data.roles"],
    ["data.guess"],
    ["data.keys"],
    ["data.prepare", "data.resplit", "data.inspect", "data.describe", "data"],
    ["acquaintance"],
    ["data.batches", "catalogue"],
    ["newcomers"],
    ["heads", "recipe", "neighbours"],
    ["products", "fields"],
    ["layers", "ties", "items", "start"],
    ["metrics", "adapt"],
    ["model", "rates", "inner"],
    ["memory"],
    ["learner", "generate"],
    ["objectives", "population"],
    ["explain", "questions", "stack"],
    ["methods"],
    ["search_space"],
    ["study"],
    ["checkpoint", "evaluate", "allocator", "average", "optimise", "inference"],
    ["statistics"],
    ["gaps"],
    ["predictor"],
    ["run"],
    ["train"],
    ["baselines"],
    ["leakage"],
    ["scenarios"],
    ["cells"],
    ["wording"],
    ["verdict", "report.paper"],
    ["results"],
    ["report.render"],
    ["report.tables", "report.style"],
    ["report.material"],
    ["report.accuracy"],
    ["report.behaviour"],
    ["report.figures"],
    ["report.page"],
    ["report"],
    ["compare", "tune"],
    ["demo"],
    [""],  # the package itself: its public names
    ["terminal"],
    ["serve.tables"],
    ["serve.database", "serve.migrations", "serve.keys"],
    ["serve.store"],
    ["serve.problems", "serve.wire", "serve.cache", "serve.observe", "serve.batcher", "serve.pagefiles"],
    ["serve.limits", "serve.service"],
    ["serve.guard"],
    ["serve.app"],
    ["serve.server"],
    ["serve"],
    ["cli_serve"],
    ["cli"],
    ["__main__"],
]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def floor_of(name: str) -> int:
    candidates = [
        (len(entry), level)
        for level, floor in enumerate(FLOORS)
        for entry in floor
        if name == entry or (entry and name.startswith(f"{entry}."))
    ]
    assert candidates, f"'{name}' stands on no floor: add it to FLOORS"
    return max(candidates)[1]


def imports_of(source: str) -> set[str]:
    """Modules of the package that a source text imports, at the top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            base = node.module or ""
            folder = SOURCE.parent / base.replace(".", "/")
            modules = {alias.name for alias in node.names if (folder / f"{alias.name}.py").exists()}
            found |= {f"{base}.{name}" for name in modules}
            if len(modules) < len(node.names):
                found.add(base)
    ours = {name for name in found if name == "paml" or name.startswith("paml.")}
    return {name.removeprefix("paml").removeprefix(".") for name in ours}


def wrong_imports(name: str, source: str) -> set[str]:
    return {other for other in imports_of(source) if floor_of(other) > floor_of(name)}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    assert not wrong_imports(module_name(path), path.read_text())


def test_an_import_that_points_up_is_found() -> None:
    assert wrong_imports("data.schema", "def f():\n    from paml.data import tasks\n") == {"data.tasks"}
    assert wrong_imports("errors", "import paml.cli") == {"cli"}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_say_what_they_are_for_and_stay_small(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 400


def test_readme_tree_names_every_module() -> None:
    readme = (SOURCE.parent.parent / "README.md").read_text()
    for path in MODULES:
        if path.name != "__init__.py":
            assert path.name in readme, f"README's tree lacks {path.name}"
