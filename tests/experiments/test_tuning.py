"""The search: never worse than its start, blind to test users, and the same however often it is interrupted."""

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import polars as pl
import psutil
import pytest
from benchmarks.attack.forge import forge
from typer.testing import CliRunner

import paml
from paml.cli import app
from paml.errors import FormatError, PamlError, SettingsError, TrainingError
from paml.experiments.tuning.plan import SearchPlan
from paml.experiments.tuning.search import Budget, SearchResult
from paml.experiments.tuning.shared import SharedStudy
from paml.experiments.tuning.space import place, read_space, space_for
from paml.experiments.tuning.study import STARTUP_TRIALS, Trial, propose
from paml.locks import hold
from paml.methods.registry import METHODS
from paml.methods.spaces import Among, Range
from paml.settings import build
from paml.training.recipe import Recipe
from waiting import PATIENCE, wait_until

QUICK = {"epochs": 2, "ensemble_size": 1, "hidden": (8,), "embedding_size": 4, "patience": 0}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("small") / "data", users=200, items=40)


def search(data: paml.Dataset, out: Path, **more: Any) -> SearchResult:
    return paml.tune(data, out=out, **{"method": "reg_paml", "budget": 3, "settings": QUICK, **more})


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]


def without_time(out: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in trial.items() if name != "seconds"} for trial in log(out)]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def done(small: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "out"
    search(small, out, budget=12)
    return out


def test_the_first_trial_is_the_start_and_the_best_is_never_worse(done: Path, small: paml.Dataset) -> None:
    found = search(small, done, budget=12)  # finished: nothing is tried again
    trials = log(done)
    assert [trial["number"] for trial in trials] == list(range(12))
    start = paml.train(small, "reg_paml", out=done.parent / "start", settings=QUICK)
    assert trials[0]["validation"] == start.settings.summary["best_validation"] == found.start.validation
    assert trials[0]["settings"] == {name: getattr(start.settings.recipe, name) for name in trials[0]["settings"]}
    finished = [trial["validation"] for trial in trials if trial["state"] == "finished"]
    assert found.best.validation == min(finished) <= trials[0]["validation"]
    assert sum(found.trials.values()) == 12
    assert set(trials[1]["settings"]) == set(METHODS["reg_paml"].space)


def test_the_best_recipe_trains_to_the_same_value(done: Path, small: paml.Dataset, tmp_path: Path) -> None:
    found = search(small, done, budget=12)
    run = paml.train(small, "reg_paml", found.best_recipe, out=tmp_path / "run")
    assert run.settings.summary["best_validation"] == found.best.validation
    assert run.settings.summary["best_epoch"] == found.best.epoch
    kept = paml.load(found.run)
    assert run.settings.recipe.choice_part  # which trials leave out
    assert kept.settings.recipe == run.settings.recipe.model_copy(update={"choice_part": False})
    assert [run.name for run in (done / "runs").iterdir()] == [str(found.best.trial)]
    assert kept.evaluate().equals(run.evaluate())


def test_bad_trials_are_pruned(small: paml.Dataset, tmp_path: Path) -> None:
    space = write(tmp_path / "space.toml", "[outer_rate]\namong = [1e-9, 1e-8, 3e-3, 5e-3, 1e-2, 2e-2]\n")
    found = search(small, tmp_path / "out", budget=14, space=space, settings={**QUICK, "epochs": 4})
    trials = log(tmp_path / "out")
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert pruned
    assert found.trials["pruned"] == len(pruned)
    assert all(2 <= len(trial["history"]) < 4 for trial in pruned)
    assert all(trial["number"] >= STARTUP_TRIALS for trial in pruned)
    assert all(trial["validation"] > found.best.validation for trial in pruned)


def test_a_planted_better_setting_is_found(small: paml.Dataset, tmp_path: Path) -> None:
    space = write(tmp_path / "space.toml", "[outer_rate]\nlow = 1e-9\nhigh = 1e-1\nlog = true\n")
    start = write(tmp_path / "start.toml", "outer_rate = 1e-9\nhidden = [8]\nembedding_size = 4\nepochs = 2\n")
    found = paml.tune(small, "melu", start, budget=8, space=space, out=tmp_path / "out")
    assert found.start.settings == {"outer_rate": 1e-9}
    assert found.best.settings["outer_rate"] > 1e-5
    assert found.best.validation < 0.9 * found.start.validation


def test_the_test_users_targets_cannot_be_read(small: paml.Dataset, done: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(small.path, copy)
    first, end = (int(small.array("offsets")[user]) for user in small.manifest.splits["test"])
    targets = np.load(copy / "arrays" / "target.npy")
    targets[first:end] = np.random.default_rng(0).permutation(targets[first:end]) * -7 + 3
    np.save(copy / "arrays" / "target.npy", targets)
    rows = pl.read_parquet(copy / "interactions.parquet")
    rows.with_columns(pl.Series("target", targets)).write_parquet(copy / "interactions.parquet")
    assert not np.array_equal(small.array("target"), targets)
    search(paml.open_data(forge(copy)), tmp_path / "out", budget=4)
    assert without_time(tmp_path / "out") == without_time(done)[:4]


@pytest.mark.slow
def test_killed_and_continued_it_tries_the_same(small: paml.Dataset, done: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = (
        "import paml, sys, torch; torch.set_num_threads(1);"
        f"paml.tune(sys.argv[1], 'reg_paml', out=sys.argv[2], budget=12, settings={QUICK!r})"
    )
    command = [sys.executable, "-c", program, str(small.path), str(out)]
    process = subprocess.Popen(command)
    while not (out / "trials.jsonl").exists() or len(log(out)) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(log(out)) < 12
    (out / "runs" / "11").mkdir(exist_ok=True)  # left by a trial that was killed
    search(small, out, budget=12)
    assert without_time(out) == without_time(done)
    assert (out / "best.toml").read_bytes() == (done / "best.toml").read_bytes()
    assert len(list((out / "runs").iterdir())) == 1


def test_a_longer_budget_goes_on_where_the_shorter_ended(small: paml.Dataset, done: Path, tmp_path: Path) -> None:
    search(small, tmp_path / "out", budget=2)
    assert len(log(tmp_path / "out")) == 2
    search(small, tmp_path / "out", budget="4,1h")
    assert without_time(tmp_path / "out") == without_time(done)[:4]


def test_the_time_ends_a_search_but_not_before_its_start(small: paml.Dataset, tmp_path: Path) -> None:
    found = search(small, tmp_path / "out", budget="0.001s")
    assert found.trials == {"finished": 1, "pruned": 0, "diverged": 0}
    space = write(tmp_path / "space.toml", "[epochs]\namong = [1, 1000000]\n")
    start = write(tmp_path / "start.toml", "epochs = 1\nhidden = [8]\nembedding_size = 4\n")
    found = search(small, tmp_path / "long", budget="2s", space=space, recipe=start, settings={})
    assert found.seconds < PATIENCE  # a million epochs take days
    assert {trial["settings"]["epochs"] for trial in log(tmp_path / "long")[1:]} <= {1}  # the other was cut off


def test_seeds_differ(small: paml.Dataset, done: Path, tmp_path: Path) -> None:
    search(small, tmp_path / "out", budget=2, seed=1)
    assert log(tmp_path / "out")[1]["settings"] != log(done)[1]["settings"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "melu"}, "was begun with another method"),
        ({"seed": 1}, "was begun with another seed"),
        ({"settings": {**QUICK, "epochs": 3}}, "was begun with another recipe or other settings"),
        ({"recipe": "paper"}, "was begun with another recipe or other settings"),
        ({"settings": {**QUICK, "gamma": 1e-3}}, "was begun with another search space"),
    ],
)
def test_another_search_is_refused(done: Path, small: paml.Dataset, arguments: dict[str, Any], message: str) -> None:
    before = (done / "trials.jsonl").read_bytes()
    with pytest.raises(SettingsError, match=message):
        search(small, done, **arguments)
    assert (done / "trials.jsonl").read_bytes() == before


def test_other_data_and_foreign_folders_are_refused(done: Path, world: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="was begun with another data set"):
        search(world, done)
    write(tmp_path / "file", "")
    with pytest.raises(SettingsError, match="is neither empty nor a search"):
        search(world, tmp_path)
    write(tmp_path / "plan.json", "{}")
    with pytest.raises(FormatError, match="is of format None, and this version reads format 1"):
        search(world, tmp_path)


def test_a_damaged_log_is_refused(done: Path, small: paml.Dataset, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "out")
    lines = (tmp_path / "out" / "trials.jsonl").read_text().splitlines(keepends=True)
    write(tmp_path / "out" / "trials.jsonl", "".join(lines[1:]))
    with pytest.raises(FormatError, match="has lines missing"):
        search(small, tmp_path / "out")
    write(tmp_path / "out" / "trials.jsonl", lines[0][:30])
    with pytest.raises(FormatError, match="cannot be read"):
        search(small, tmp_path / "out")


@pytest.mark.parametrize("method", ["reg_paml", "ridge"])
def test_trials_that_diverge_do_not_end_the_search(small: paml.Dataset, tmp_path: Path, method: str) -> None:
    space = write(tmp_path / "space.toml", "[outer_rate]\namong = [1e-3, 1e30]\n")
    found = search(small, tmp_path / "out", budget=6, space=space, method=method)
    diverged = [trial for trial in log(tmp_path / "out") if trial["state"] == "diverged"]
    assert {trial["settings"]["outer_rate"] for trial in diverged} == {1e30}
    assert all("the loss is" in trial["reason"] or "validation" in trial["reason"] for trial in diverged)
    assert found.best.settings["outer_rate"] != 1e30
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1
    space = write(tmp_path / "worse.toml", "[outer_rate]\namong = [1e29, 1e30]\n")
    start = write(tmp_path / "start.toml", "outer_rate = 1e30\nhidden = [8]\nepochs = 2\n")
    with pytest.raises(TrainingError, match="every trial diverged"):
        paml.tune(small, method, start, budget=2, space=space, out=tmp_path / "worse")


def test_no_validation_users(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=100, items=30, user_ratio="8:0:2")
    with pytest.raises(
        SettingsError, match="no validation users to judge trials by; prepare it with another user_ratio"
    ):
        search(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_epochs(small: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a trial of 0 epochs cannot be judged"):
        search(small, tmp_path / "out", settings={**QUICK, "epochs": 0})


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("30", Budget(30, None)),
        (7, Budget(7, None)),
        ("90s", Budget(None, 90)),
        ("20m", Budget(None, 1200)),
        ("1.5h", Budget(None, 5400)),
        ("30, 20m", Budget(30, 1200)),
    ],
)
def test_budgets(text: str | int, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "0", "-3", "2.5", "x", "20min", "1d", "3,4", "1m,2h", "nan", "0m"])
def test_invalid_budgets(text: str) -> None:
    with pytest.raises(SettingsError, match="give a number of trials"):
        Budget.parse(text)


def test_every_method_has_a_space_of_settings_that_recipes_accept() -> None:
    for space in (method.space for method in METHODS.values()):
        for name, range_ in space.items():
            for value in range_.choices if isinstance(range_, Among) else (range_.low, range_.high):
                build(Recipe, {name: value})
    assert "gamma" not in METHODS["paml"].space
    assert "rate_scale" not in METHODS["melu"].space
    assert "inner_rate" not in METHODS["reg_paml"].space


def test_seeds_that_no_generator_takes_are_refused(small: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="seed is -1; expected a whole number from 0"):
        search(small, tmp_path / "out", seed=-1)
    assert not (tmp_path / "out").exists()


def test_settings_that_are_held_are_not_searched(small: paml.Dataset, tmp_path: Path) -> None:
    assert "gamma" not in space_for("reg_paml", ["gamma"])
    with pytest.raises(SettingsError, match="nothing to search"):
        space_for("reg_paml", METHODS["reg_paml"].space)
    space = write(tmp_path / "space.toml", "[gamma]\nlow = 0\nhigh = 1\n")
    with pytest.raises(SettingsError, match=r"space.toml: setting 'gamma' is both searched and held fixed"):
        search(small, tmp_path / "out", space=space, settings={**QUICK, "gamma": 1})
    search(small, tmp_path / "out", budget=2, settings={**QUICK, "outer_rate": 2e-3, "batch_size": 8})
    assert not {"outer_rate", "batch_size"} & set(log(tmp_path / "out")[1]["settings"])
    assert (
        paml.train(small, recipe=tmp_path / "out" / "best.toml", out=tmp_path / "run").settings.recipe.batch_size == 8
    )


def test_settings_that_no_trial_reads_are_refused(small: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is for the choice part, which the trials of a search do not have"):
        paml.tune(small, "melu", budget=1, out=tmp_path / "search", settings={"choice.epochs": 1})
    assert not (tmp_path / "search").exists()


def test_your_own_search_space(tmp_path: Path) -> None:
    text = '[inner_steps]\nlow = 1\nhigh = 3\n[hidden]\namong = [[8], "8,4"]\n[item_bias]\namong = [true, false]\n'
    space = read_space(write(tmp_path / "space.toml", text))
    assert space == {"inner_steps": Range(1, 3), "hidden": Among(("8", "8,4")), "item_bias": Among((True, False))}
    assert place("hidden", space["hidden"], (8, 4)) == "8,4"
    assert place("hidden", space["hidden"], (9,)) is None
    assert place("inner_steps", space["inner_steps"], 4) is None
    assert place("item_bias", space["item_bias"], False) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[outer_rat]\nlow = 1\nhigh = 2", "space.toml: unknown setting 'outer_rat'; did you mean 'outer_rate'"),
        ("outer_rate = 3", "the range of setting 'outer_rate' is not understood; give low and high"),
        ("[outer_rate]\nlow = 1", "the range of setting 'outer_rate' is not understood"),
        ("[outer_rate]\nlow = 1\nhigh = 2\nlogg = true", "'logg' of setting 'outer_rate' is not understood"),
        ("[outer_rate]\nlow = 2\nhigh = 1", "setting 'outer_rate' cannot range from 2 to 1"),
        ("[outer_rate]\nlow = 1\nhigh = 2\nlog = 3", "setting 'outer_rate' cannot range"),
        ("[weight_decay]\nlow = 0\nhigh = 1\nlog = true", "a logarithmic range must begin above 0"),
        ("[outer_rate]\nlow = 0\nhigh = 1", "setting 'outer_rate' is 0; expected greater than 0"),
        ("[outer_rate]\nlow = 'a'\nhigh = 1", "setting 'outer_rate' is 'a'"),
        ("[inner_steps]\nlow = 0.5\nhigh = 2", "setting 'inner_steps' is 0.5; expected a valid integer"),
        ("[optimizer]\nlow = 1\nhigh = 2", "setting 'optimizer' is not a number; write among"),
        ("[optimizer]\namong = ['adam', 'sgd']", "setting 'optimizer' is 'sgd'; expected 'adam' or 'adamw'"),
        ("[optimizer]\namong = []", r"'among' of setting 'optimizer' is \[\]; give a list"),
        ("[hidden]\namong = ['8', [8]]", "setting 'hidden' has the same choice twice"),
        ("[hidden", "space.toml: is not TOML"),
        ("", "nothing to search"),
    ],
)
def test_invalid_spaces(small: paml.Dataset, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        search(small, tmp_path / "out", space=write(tmp_path / "space.toml", text))
    assert not (tmp_path / "out").exists()


def test_the_sampler_learns_from_the_trials() -> None:
    """Where small rates are good, and large ones diverge, small ones are proposed."""
    space = {"outer_rate": Range(1e-6, 1.0, log=True)}
    rates = np.logspace(-6, 0, 24).tolist()
    trials = [
        Trial(
            n, "finished" if rate < 1e-2 else "diverged", rate if rate < 1e-2 else None, 1, {"outer_rate": rate}, [], 1
        )
        for n, rate in enumerate(rates)
    ]
    proposed = [propose(trials, space, seed, 20).params["outer_rate"] for seed in range(20)]
    assert np.median(proposed) < 1e-4
    assert max(proposed) < 1e-2
    assert propose(trials, space, 3, 20).params == propose(trials, space, 3, 20).params


def test_on_epoch_ends_a_training_that_can_be_resumed(small: paml.Dataset, tmp_path: Path) -> None:
    seen: list[tuple[int, float | None]] = []

    def stop(epoch: int, value: float | None) -> None:
        seen.append((epoch, value))
        if epoch == 2:
            raise InterruptedError

    settings = {**QUICK, "epochs": 3}
    with pytest.raises(InterruptedError):
        paml.train(small, out=tmp_path / "run", settings=settings, on_epoch=stop)
    run = paml.train(
        small, out=tmp_path / "run", settings=settings, reuse=True, on_epoch=lambda *pair: seen.append(pair)
    )
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert seen == [(line["epoch"], line["validation_mse"]) for line in lines]


def test_two_searches_in_one_folder(small: paml.Dataset, done: Path) -> None:
    with (
        hold(done / ".lock", done, "searching in it"),
        pytest.raises(PamlError, match=rf"is in use: process {os.getpid()} on .* is searching in it since .*; wait"),
    ):
        search(small, done)


def test_optuna_is_an_extra(small: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"Optuna is not installed; pip install 'paml\[tune\]'"):
        search(small, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_clicks(click_world: paml.Dataset, tmp_path: Path) -> None:
    found = search(click_world, tmp_path / "out", method="melu", budget=2)
    assert found.metric == "nel"


def test_the_command(small: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from paml.cli import main; main()"
    arguments = ["tune", str(small.path), "--method", "melu", "--budget", "2", "epochs=1", "hidden=8"]
    command = [sys.executable, "-W", "error", "-c", program, *arguments, "--threads", "1"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    best = "paml-tune/synthetic-melu/best.toml"
    assert shown.stdout.splitlines()[-1] == f"next: paml train {small.path} --method melu --recipe {best}"
    assert "validation mse" in shown.stdout
    assert "inner_rate" in shown.stdout
    lines = shown.stderr.splitlines()
    assert lines[-1].startswith("tuning melu: done in")
    assert all(line.startswith("tuning melu: ") for line in lines)  # and nothing of Optuna's
    monkeypatch.chdir(tmp_path)
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(again.stdout)["best_recipe"] == best
    assert CliRunner().invoke(app, ["train", str(small.path), "--recipe", best, "--method", "melu"]).exit_code == 0


def test_a_search_may_be_judged_by_lists(small: paml.Dataset, tmp_path: Path) -> None:
    found = search(small, tmp_path / "out", by="ndcg10", budget=2)
    trials = log(tmp_path / "out")
    assert found.metric == "ndcg10"
    assert [trial["state"] for trial in trials] == ["finished"] * 2
    assert found.best.validation == -min(trial["validation"] for trial in trials) > 0  # a search minimises
    best = paml.evaluate(found.run, small, "validation")
    assert best["ndcg10"]["all"] == pytest.approx(found.best.validation)
    assert f"# NDCG10 of validation users: {found.best.validation:.6f}" in (tmp_path / "out" / "best.toml").read_text()
    with pytest.raises(SettingsError, match="was begun with another metric to judge by"):
        search(small, tmp_path / "out", budget=2)
    with pytest.raises(SettingsError, match="trials cannot be judged by 'ndgc10'; did you mean 'ndcg10'"):
        search(small, tmp_path / "other", by="ndgc10")
    with pytest.raises(SettingsError, match="trials cannot be judged by 'popularity'"):
        search(small, tmp_path / "other", by="popularity")


def test_judged_by_the_loss_a_search_is_the_usual_one(small: paml.Dataset, tmp_path: Path) -> None:
    usual, named = (search(small, tmp_path / name, budget=2, by=by) for name, by in (("a", None), ("b", "mse")))
    assert without_time(tmp_path / "a") == without_time(tmp_path / "b")
    assert usual.best.validation == named.best.validation


@pytest.mark.slow
def test_searches_share_a_storage(small: paml.Dataset, tmp_path: Path) -> None:
    """Each has its own folder; trials of both count, and both end with the same recipe."""
    storage, settings = str(tmp_path / "journal.log"), {**QUICK, "epochs": 1}
    first = search(small, tmp_path / "a", budget=2, storage=storage, settings=settings)
    second = search(small, tmp_path / "b", budget=3, storage=storage, settings=settings)
    assert [trial["number"] for trial in log(tmp_path / "b")] == [0, 1, 2]
    assert without_time(tmp_path / "b")[:2] == without_time(tmp_path / "a")
    alone = search(
        small, tmp_path / "alone", budget=3, settings=settings
    )  # one after the other, it makes no difference
    assert without_time(tmp_path / "alone") == without_time(tmp_path / "b")
    assert second.best == alone.best
    assert first.start == second.start
    assert paml.load(second.run).settings.recipe.outer_rate == second.best.settings["outer_rate"]
    study = optuna.load_study(
        study_name=None, storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(storage))
    )
    assert [trial.params for trial in study.trials][1:] == [trial["settings"] for trial in log(tmp_path / "b")][1:]
    assert [trial.value for trial in study.trials] == [trial["validation"] for trial in log(tmp_path / "b")]
    with pytest.raises(SettingsError, match="was begun with a storage; repeat"):
        search(small, tmp_path / "b", budget=3, settings=settings)
    again = search(small, tmp_path / "c", budget=2, storage=f"sqlite:///{tmp_path / 'study.db'}", settings=settings)
    assert again.best == first.best


def test_a_start_that_was_lost_is_tried_again(
    small: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted, or by a process that was killed: the start is tried by whoever comes next, and by nobody twice."""
    storage, settings = f"sqlite:///{tmp_path / 'study.db'}", {**QUICK, "epochs": 1}
    for number, error in enumerate((KeyboardInterrupt, SystemExit)):
        with monkeypatch.context() as patched:
            patched.setattr("paml.experiments.tuning.search.run_trial", lambda *_, error=error: raised_error(error))
            if error is SystemExit:  # nothing is said at the end
                patched.setattr(SharedStudy, "abandon", lambda study: None)
                patched.setattr("os.getpid", lambda: 2**30)
            with pytest.raises(error):
                search(small, tmp_path / f"lost{number}", budget=2, storage=storage, settings=settings)
    found = search(small, tmp_path / "out", budget=2, storage=storage, settings=settings)
    assert found.start.validation is not None
    assert found.start.trial == 2
    start, other = log(tmp_path / "out")
    assert start["settings"] != other["settings"]
    assert found.best.validation == min(start["validation"], other["validation"])
    assert tomllib.loads((tmp_path / "out" / "best.toml").read_text())["epochs"] == 1


def test_who_comes_second_is_not_the_start(small: paml.Dataset, tmp_path: Path) -> None:
    """As long as the first has not said what it tries."""
    plan = SearchPlan(
        source="s", fingerprint="f", method="melu", recipe="tuned", start={}, space={}, seed=0, by=None, shared=True
    )
    study, other = (SharedStudy(f"sqlite:///{tmp_path / 'study.db'}", plan, {}) for _ in range(2))
    first, second = study.begin(None), other.begin(3)
    assert first is not None
    assert second is not None
    assert study.may_be_first(first)
    assert not other.may_be_first(second)
    study.note(first, {})
    assert other.may_be_first(second)
    assert study.begun() == other.begun() == 2
    assert other.begin(2) is None  # there are as many as that, wherever they run
    assert study.begun() == 2
    other.abandon()
    assert study.begun() == 1
    assert study.begin(2) is not None


def test_a_search_for_a_ranker_is_judged_by_the_loss_of_choices(small: paml.Dataset, tmp_path: Path) -> None:
    settings = {"head": "choice", "epochs": 1, "item_embedding": 8}
    found = search(small, tmp_path / "out", method="melu", budget=1, settings=settings)
    assert found.metric == "choice loss"
    assert "# Choice loss of validation users: " in (tmp_path / "out" / "best.toml").read_text()
    (line,) = (Path(found.run) / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["validation_choice_loss"] == pytest.approx(found.best.validation, rel=1e-6)
    with pytest.raises(SettingsError, match="trials cannot be judged by 'mse'"):
        search(small, tmp_path / "other", method="melu", by="mse", settings=settings)
    lists = search(small, tmp_path / "lists", method="melu", by="ndcg10", budget=1, settings=settings)
    assert lists.metric == "ndcg10"


def raised_error(error: type[BaseException]) -> None:
    raise error


def test_settings_that_cannot_be_trained_are_a_bad_trial(small: paml.Dataset, tmp_path: Path) -> None:
    """Not the end of the search; those of the start are."""
    space = write(tmp_path / "space.toml", "[item_embedding]\namong = [4, 1000000000000]\n")
    settings = {**QUICK, "epochs": 1}
    found = search(small, tmp_path / "out", budget=6, space=space, settings=settings)
    assert found.trials["diverged"] >= 1
    assert found.trials["finished"] >= 1
    assert any("cannot be built" in str(trial["reason"]) for trial in log(tmp_path / "out"))
    with pytest.raises(SettingsError, match="cannot be built"):
        search(small, tmp_path / "large", settings={**settings, "item_embedding": 10**12})


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (
            "nonsense://user:secret@host/db",
            "^nonsense: cannot be opened .*; give the path of a journal file, or the URL",
        ),
        ("no/such/folder/journal.log", "^no/such/folder/journal.log: cannot be opened"),
    ],
)
def test_a_storage_that_cannot_be_opened(small: paml.Dataset, tmp_path: Path, storage: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        search(small, tmp_path / "out", storage=storage)
    assert "secret" not in str(raised.value)


def test_trials_under_way_are_kept_away_from() -> None:
    space = {"outer_rate": Range(1e-6, 1.0, log=True)}
    rates = np.logspace(-6, 0, 24).tolist()
    trials = [
        Trial(n, "finished", abs(np.log10(rate) + 3), 1, {"outer_rate": rate}, [], 1) for n, rate in enumerate(rates)
    ]

    def proposed(under_way: list[dict[str, float]]) -> float:
        """The share of proposals next to the best rate."""
        found = [propose(trials, space, seed, 20, number=24, under_way=under_way) for seed in range(30)]
        return float(np.mean([abs(np.log10(one.params["outer_rate"]) + 3) < 0.5 for one in found]))

    assert proposed([{"outer_rate": 1e-3}] * 6) < proposed([])


@pytest.mark.slow
def test_jobs_share_the_trials_also_if_one_dies(small: paml.Dataset, tmp_path: Path) -> None:
    settings = [f"{name}={value[0] if isinstance(value, tuple) else value}" for name, value in QUICK.items()]
    options = ["--method", "reg_paml", "--budget", "6", "--jobs", "2", "--out", "out", "--json"]
    command = [sys.executable, "-W", "error", "-m", "paml", "tune", str(small.path), *options, *settings]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list((tmp_path / "out" / "runs").glob("job-*")) or process.poll() is not None)
        workers = [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())]
        workers[0].kill()
        printed, _ = process.communicate()
    found = SearchResult.model_validate_json(printed)
    trials = log(tmp_path / "out")
    assert [trial["number"] for trial in trials] == list(range(6))
    start = paml.train(small, "reg_paml", out=tmp_path / "start", settings=QUICK)
    assert trials[0]["validation"] == start.settings.summary["best_validation"] == found.start.validation
    assert len({json.dumps(trial["settings"]) for trial in trials}) == 6
    assert [run.name for run in (tmp_path / "out" / "runs").iterdir()] == [str(found.best.trial)]
    assert paml.load(tmp_path / found.run).settings.recipe.outer_rate == found.best.settings["outer_rate"]
    more = search(small, tmp_path / "out", budget=7)  # goes on, alone
    assert sum(more.trials.values()) == 7
