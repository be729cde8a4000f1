"""Writes the modules that tell editors and type checkers the settings of `paml.prepare`, `train`, `compare` and `tune`.

    python tests/typed_settings.py

after a setting was added or changed; `tests/test_typed_settings.py` fails as long as that was forgotten.
"""

import sys
import textwrap
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from paml.data.protocol import Protocol
from paml.data.sources import SOURCES
from paml.settings import Settings
from paml.training.recipe import Recipe
from paml.training.sizing import AUTO, RULES

SOURCE = Path(__file__).parent.parent / "src" / "paml"
ARGUMENTS = {"liked", "users", "items"}
"""Settings that are arguments of `compare`, or of `prepare`, themselves."""
ALSO = {"new_items": "float"}
"""What settings take beyond their type: a share of the items, as a number."""


def modules() -> dict[Path, str]:
    """The content of every such module."""
    recipe = described([Recipe])
    shared = {name: entry for name, entry in recipe.items() if name not in ARGUMENTS}
    alone = {name: entry for name, entry in recipe.items() if name in ARGUMENTS}
    sources = described([Protocol, *dict.fromkeys(source.settings for source in SOURCES.values())])
    prepared = {name: entry for name, entry in sources.items() if name not in ARGUMENTS}
    compare = typed_dict(
        "CompareSettings", "TypedDict, total=False", "Settings of the recipe, for all methods.", shared
    )
    train = typed_dict("TrainSettings", "CompareSettings, total=False", "All settings of the recipe.", alone)
    prepare = "Settings of the sources and of the protocol; `users` and `items` are arguments of `prepare` itself."
    return {
        SOURCE / "training" / "keywords.py": module("a recipe", [compare, train]),
        SOURCE / "data" / "keywords.py": module(
            "a preparation", [typed_dict("PrepareSettings", "TypedDict, total=False", prepare, prepared)]
        ),
    }


def described(classes: Iterable[type[Settings]]) -> dict[str, tuple[str, str]]:
    """The type and the description of every setting."""
    found: dict[str, tuple[str, str]] = {}
    for owner in classes:
        for name, field in owner.model_fields.items():
            wider = {**({name: f'Literal["{AUTO}"]'} if owner is Recipe and name in RULES else {}), **ALSO}
            kinds = dict.fromkeys([*type_of(field.annotation).split(" | "), *([wider[name]] if name in wider else [])])
            entry = " | ".join(kinds), str(field.description)
            assert found.setdefault(name, entry)[0] == entry[0], f"{name} has two types"
    return found


def type_of(annotation: Any) -> str:
    """The type of what people may give, as they would write it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_of(parts[0])
    if origin is Literal:
        return "Literal[" + ", ".join(f'"{value}"' for value in parts) + "]"
    if origin is tuple:
        return f"Sequence[{type_of(parts[0])}] | str"
    if origin in (Union, types.UnionType):
        return " | ".join(type_of(part) for part in parts)
    return "None" if annotation is type(None) else str(annotation.__name__)


def typed_dict(name: str, bases: str, about: str, entries: Mapping[str, tuple[str, str]]) -> str:
    """One class."""
    lines = [f"class {name}({bases}):", f'    """{about}"""', ""]
    for key, (kind, description) in entries.items():
        first, _, rest = description.partition(" ")
        sentence = f'"""{first if "=" in first else first.capitalize()} {rest}."""'
        lines += [f"    {key}: {kind}", *textwrap.wrap(sentence, 116, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join(lines) + "\n"


def module(what: str, classes: Iterable[str]) -> str:
    """A whole module."""
    about = f'"""The settings of {what} as keyword arguments, for editors and type checkers; written by a program."""'
    body = "\n\n".join(classes)
    imports = ["from collections.abc import Sequence"] if "Sequence[" in body else []
    return "\n".join([about, "", *imports, "from typing import Literal, TypedDict", "", "", body])


if __name__ == "__main__":
    for path, text in modules().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
