"""The library as people meet it in a notebook: short texts, any way of giving things, clear errors, progress."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import paml
from commands import run as command
from paml import progress
from paml.errors import InputError, SettingsError
from paml.progress import SILENT, BarProgress, LineProgress, NotebookProgress, chosen

RunOf = Callable[[str, str], paml.Run]


def test_texts_of_objects_are_short_and_useful(world: paml.Dataset, run_of: RunOf) -> None:
    run = run_of("rating", "ridge")
    ratings = [(item, 4) for item in run.predictor.catalogue.ids[:60]]
    user = run.adapt({"age": "25", "gender": "F"}, ratings)
    texts = {
        repr(world): "synthetic, ",
        repr(run): "ridge for ratings and choice, 80 items",
        repr(run.predictor): "Predictor(1 network, 80 items, by ",  # two, merged
        repr(run_of("rating", "melu").predictor): "Predictor(2 networks, 80 items, by ",
        repr(run.predictor.catalogue): "Catalogue(80 items)",
        repr(user): "User(60 ratings, age=25, gender=F, ",
        repr(user.new_user): "(60 ratings)",
        repr(run.adapt()): "User(nothing is known; rate ",
    }
    for text, part in texts.items():
        assert part in text
        assert len(text) < 200 + len(str(world.path)) + len(str(run.path))
        assert "\n" not in text
        assert "0x" not in text.replace(str(world.path), "").replace(str(run.path), "")


def test_a_data_set_may_be_given_by_its_folder(world: paml.Dataset) -> None:
    assert paml.describe(str(world.path)) == paml.describe(world.path) == paml.describe(world)
    for call in (paml.describe, paml.open_data, paml.train):
        with pytest.raises(SettingsError, match=r"3 is not a data set; give what paml.prepare returns, or its folder"):
            call(3)  # type: ignore[operator]


def test_settings_of_a_comparison_are_keywords_like_those_of_a_training(world: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown setting 'members'"):
        paml.compare(world, ["melu"], members=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ratings_are_given_in_any_way(run_of: RunOf) -> None:
    run = run_of("rating", "ridge")
    expected = run.adapt(ratings={"3": 5, "7": 2}).predict(["20"])[0]
    for ratings in ([("3", 5), ("7", 2)], (["3", 5], ["7", 2]), [paml.Rating("3", 5), ("7", 2)]):
        assert run.adapt(ratings=ratings).predict("20")[0] == expected  # type: ignore[arg-type]
    for wrong in ("3", 5, [3], [("3", 5, 1)], [{"item": "3"}]):
        with pytest.raises(InputError, match=r"ratings cannot be .*; expected \{\"3\": 5\}, \[\(\"3\", 5\)\] or"):
            run.adapt(ratings=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a profile cannot be"):
        run.adapt(profile=["age"])  # type: ignore[arg-type]


def test_one_item_is_not_its_characters(run_of: RunOf) -> None:
    assert run_of("rating", "ridge").adapt().predict("26").shape == (1,)


def test_values_that_the_model_does_not_know_are_said(run_of: RunOf) -> None:
    run = run_of("rating", "ridge")
    user = run.adapt({"age": "abc", "gender": "F", "zip": None})
    assert user.unknown == ("age",)
    told = command("recommend", run.path, "--profile", "age=a\x1b[31mbc", "--profile", "gender=F")
    assert r"the model does not know age 'a\x1b[31mbc': it counts as not given" in told.stdout
    assert "prior variance" in told.stdout
    assert "\x1b" not in told.stdout


class Terminal(io.StringIO):
    """Standard error of somebody who watches."""

    def isatty(self) -> bool:
        return True


def test_the_library_shows_progress_to_whoever_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert chosen(None) is SILENT
    assert isinstance(chosen(True), LineProgress)
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(chosen(None), BarProgress)
    assert isinstance(chosen(True), BarProgress)
    assert chosen(False) is SILENT
    monkeypatch.setenv("PAML_PROGRESS", "0")
    assert chosen(None) is SILENT
    monkeypatch.delenv("PAML_PROGRESS")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=io.StringIO(), force_jupyter=True))
    assert isinstance(chosen(None), NotebookProgress)
    with pytest.raises(SettingsError, match="progress is 'loud'; expected True, False or None"):
        chosen("loud")  # type: ignore[arg-type]


def test_bars_are_drawn_while_a_data_set_is_prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Terminal()
    monkeypatch.setattr("sys.stderr", watched)
    monkeypatch.setenv("TERM", "xterm")
    paml.prepare("synthetic", out=tmp_path / "a", users=60, items=30)
    assert "counting interactions" in watched.getvalue()
    quiet = Terminal()
    monkeypatch.setattr("sys.stderr", quiet)
    paml.prepare("synthetic", out=tmp_path / "b", users=60, items=30, progress=False)
    assert quiet.getvalue() == ""


def test_titles_and_ids_reach_a_terminal_written_out(tmp_path: Path) -> None:
    rows = [f"{u},i{i},{1 + (u * 7 + i * 3) % 5}" for u in range(30) for i in range(10)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,rating", *rows]).replace("i3,", "i\x1b[2J3,") + "\n")
    films = [f"i{i},\x1b]0;gone\x07Film {i}\u202e,{'ab'[i % 2]}" for i in range(10)]
    (tmp_path / "items.csv").write_text("\n".join(["item,title,kind", *films]).replace("i3,", "i\x1b[2J3,") + "\n")
    shown = command("data", "inspect", tmp_path / "log.csv", tmp_path / "items.csv")
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "schema.toml").write_text(shown.stdout)
    data = paml.prepare("tables", schema=tmp_path / "schema.toml", out=tmp_path / "data")
    run = paml.train(data, out=tmp_path / "run", epochs=1, ensemble_size=1)
    first = command("recommend", run.path, "--rate", "i1=5", "--why")
    as_json = command("recommend", run.path, "--rate", "i1=5", "--json")
    for done in (shown, first, as_json):
        assert done.returncode == 0, done.stderr
        assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout + done.stderr)
    assert r"\x1b]0;" in first.stdout
