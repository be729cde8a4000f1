"""A run of an older format names the command that trains it again, with everything that was given."""

import json
import re
import shlex
from pathlib import Path

import pytest

import paml
from commands import run as command
from paml.training.anew import anew

PARTS = ("", "choice")


def recipes(run: Path) -> list[dict[str, object]]:
    return [json.loads((run / part / "settings.json").read_text())["recipe"] for part in PARTS]


def aged(run: Path) -> None:
    """As if an older version had written it."""
    for part in PARTS:
        file = run / part / "settings.json"
        file.write_text(re.sub(r'"format": \d+', '"format": 1', file.read_text(), count=1))


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("ridge", ("epochs=1", "ensemble_size=2", "user_bias_discount=0.5", "choice.taste_dropout=0.1")),
        (
            "paml",
            ("epochs=1", "choice.epochs=2", "few_shot_share=0.5", "exclude_fields=user.age,item.year", "--seed", "3"),
        ),
    ],
)
def test_the_command_trains_the_same_run(
    world: paml.Dataset, tmp_path: Path, method: str, given: tuple[str, ...]
) -> None:
    old = tmp_path / "run"
    assert command("train", world.path, "--method", method, "--out", old, *given).returncode == 0
    wanted = recipes(old)
    aged(old)
    said = command("recommend", old).stderr
    assert "is of format 1" in said
    words = shlex.split(said[said.rindex("(paml ") + 1 : said.rindex(")")])
    assert command(*words[1:]).returncode == 0
    assert recipes(Path(f"{old}-new")) == wanted


def test_a_recipe_of_ones_own_is_written_out(tmp_path: Path) -> None:
    """Its file may be gone or may have changed; of a damaged file, what can be read."""
    found = anew(tmp_path, {"recipe_name": "own.toml", "method": "melu", "recipe": {"epochs": 3, "gone": 1}}, {})
    assert found.options == {"method": "melu", "recipe": "tuned", "out": f"{tmp_path}-new"}
    assert "epochs=3" in found.words
    assert not [word for word in found.words if word.startswith("gone")]
    assert anew(tmp_path, {"recipe": 7, "data_schema": [], "method": None}, {"recipe": "x"}).words[:2] == [
        "train",
        "DATA",
    ]
