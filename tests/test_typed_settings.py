"""Settings are typed and complete in an editor: what type checkers are told is what the settings classes say."""

from inspect import signature
from pathlib import Path
from typing import Any, Unpack, get_type_hints

import pytest
from mypy import api

import paml
from paml.data.keywords import PrepareSettings
from paml.data.protocol import Protocol
from paml.settings import build
from paml.training.keywords import CompareSettings, TrainSettings
from paml.training.recipe import Recipe, load_recipe
from typed_settings import modules

FUNCTIONS: dict[str, Any] = {
    "prepare": PrepareSettings,
    "train": TrainSettings,
    "compare": CompareSettings,
    "tune": TrainSettings,
}
PROGRAM = """\
from typing import Unpack

from training import CompareSettings, TrainSettings
from data import PrepareSettings

def prepare(source: str, **more: Unpack[PrepareSettings]) -> None: ...
def train(data: str, **more: Unpack[TrainSettings]) -> None: ...
def compare(data: str, **more: Unpack[CompareSettings]) -> None: ...

prepare("synthetic", split="time", new_items=0.1, user_ratio=(7, 1, 2))
train("data", epochs=3, hidden=(8, 8), weight_decay="auto", affinity_fields=["author"], liked=4)
compare("data", epochs=3)
"""
MISTAKES = {
    'prepare("synthetic", splt="time")': 'Unexpected keyword argument "splt" for "prepare"',
    'prepare("synthetic", split="tim")': "incompatible type",
    'train("data", epoch=3)': 'Unexpected keyword argument "epoch" for "train"',
    'train("data", epochs="many")': "incompatible type",
    'train("data", head="rating")': "incompatible type",
    'compare("data", gama=1)': 'Unexpected keyword argument "gama" for "compare"',
    'compare("data", patience=0.5)': "incompatible type",
}


@pytest.mark.parametrize("path", modules(), ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_the_modules_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == modules()[path], "run: python tests/typed_settings.py"


def test_every_setting_is_a_keyword() -> None:
    assert set(get_type_hints(TrainSettings)) == set(Recipe.model_fields)
    assert set(get_type_hints(CompareSettings)) == set(Recipe.model_fields) - {"liked"}  # an argument of its own
    assert set(get_type_hints(PrepareSettings)) > set(Protocol.model_fields)
    keywords = {name: signature(getattr(paml, name)).parameters["more"].annotation for name in FUNCTIONS}
    assert keywords == {name: Unpack[settings] for name, settings in FUNCTIONS.items()}


def test_what_the_types_allow_is_accepted() -> None:
    given = load_recipe("tuned", "melu", {"hidden": [8, 8], "weight_decay": "auto", "affinity_fields": "genre,year"})
    assert (given.hidden, given.affinity_fields) == ((8, 8), ("genre", "year"))
    protocol = build(Protocol, {"new_items": 0.1, "user_ratio": [7, 1, 2], "support_days": 3})
    assert (protocol.new_items, protocol.user_ratio) == ("0.1", (7, 1, 2))
    assert build(Protocol, {"user_ratio": "7:1:2"}).user_ratio == (7, 1, 2)


@pytest.mark.slow
def test_type_checkers_know_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked with the two modules alone, since the whole package takes a minute."""
    for path, text in modules().items():
        (tmp_path / f"{path.parent.name}.py").write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM + "\n".join(MISTAKES) + "\n")
    monkeypatch.chdir(tmp_path)
    found, problems, _ = api.run(["program.py", "--strict", "--config-file=", "--cache-dir=cache"])
    assert not problems
    first = PROGRAM.count("\n") + 1
    expected = [f"program.py:{number}: error: " for number in range(first, first + len(MISTAKES))]
    errors = [line for line in found.splitlines() if ": error: " in line]
    assert len(errors) == len(expected), found
    for line, place, message in zip(errors, expected, MISTAKES.values(), strict=True):
        assert line.startswith(place), found
        assert message in line
