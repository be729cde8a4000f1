"""Training: one contract for every method, resume to equal weights, clear errors."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from benchmarks.attack.forge import forge
from safetensors.torch import save_file

import paml
from paml.baselines import SplitRows, tuned_bias
from paml.cli.show import render_training, standard_output
from paml.errors import FormatError, PamlError, SettingsError, TooLarge, TrainingError
from paml.methods.registry import METHODS
from paml.testing import MethodSuite
from paml.testing.methods import QUICK, check_saved, resumed, same_weights, scores_of
from paml.training import checkpoint
from paml.training.loop import Trainer
from paml.training.optim import OuterOptimizer
from paml.training.recipe import choice_recipe, load_recipe, recipe_names
from paml.training.run import write_settings
from paml.training.sizing import DataSize

QUICK_CHOICE = {"head": "choice", "epochs": 2, "ensemble_size": 1, "item_embedding": 8, "memory_size": 150}
PARTS = {
    "rating": QUICK,
    "choice": QUICK_CHOICE,
    "both": {**QUICK, "choice_part": True, "choice.item_embedding": 8, "choice.memory_size": 150},
}
"""Settings of runs by the parts that they have."""
RUNS = [
    *((method, "choice") for method in METHODS),
    *((method, part) for method in ("melu", "at_paml", "ridge") for part in ("both", "choices")),
]
QUICK_CHOICES = {name: value for name, value in QUICK_CHOICE.items() if name != "head"}
"""For a data set of choices, which has no other part."""


@pytest.fixture(scope="session")
def middle_world(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    """The synthetic world at its default size."""
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("middle") / "data")


FILES = ("weights.safetensors", "choice/weights.safetensors", "preference.safetensors")


@pytest.mark.parametrize("method", METHODS)
class TestContract(MethodSuite):
    """Every method keeps the contract that others' methods are held to."""


@pytest.mark.parametrize(("method", "parts"), RUNS)
def test_contract_of_choice_parts(
    method: str, parts: str, world: paml.Dataset, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same for choice, alone and beside ratings: saves, reloads, repeats, resumes."""
    settings = {**PARTS, "choices": QUICK_CHOICES}[parts]
    if parts == "choices":
        world, parts = request.getfixturevalue("choice_world"), "choice"
    run = paml.train(world, method, out=tmp_path / "a", settings=settings)
    check_saved(run, world, epochs=2)
    assert same_weights(run, resumed(world, method, tmp_path / "b", settings))
    assert not same_weights(run, paml.train(world, method, out=tmp_path / "c", seed=1, settings=settings))
    rows = run.evaluate()
    assert rows.columns[:5] == ["user", "group", "rate", "support_rows", "query_rows"]
    assert [(run.path / file).exists() for file in FILES] == [True, parts == "both", True]
    summary = paml.evaluate(run.path)
    assert ("mse" in summary) == (parts != "choice")
    assert 0 < summary["ndcg10"]["all"] < 1
    if parts != "choice":
        assert summary["mse"]["all"] == pytest.approx(rows["mse"].mean())
    assert pl.read_parquet(run.path / "rows.parquet").select(rows.columns).equals(rows)  # and lists beside them


@pytest.mark.parametrize("parts", ["rating", "choice"])
@pytest.mark.parametrize("method", METHODS)
def test_episodes_without_support_rows_are_learned_from(
    method: str, parts: str, world: paml.Dataset, tmp_path: Path
) -> None:
    """A loss that is not finite would end the training."""
    settings = {**PARTS[parts], "epochs": 1, "few_shot_share": 1.0}
    run = paml.train(world, method, out=tmp_path / "run", settings=settings)
    assert run.settings.recipe.few_shot_share == 1.0
    assert scores_of(run, world).isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_choices_are_trained_as_the_choice_part(method: str, choice_world: paml.Dataset, tmp_path: Path) -> None:
    """A run on choices is what the choice part of a run on ratings is, settings and all; ridge's is MeLU's."""
    run = paml.train(choice_world, method, out=tmp_path / "run", epochs=0)
    whole = choice_recipe(
        "tuned", "melu" if method == "ridge" else method, {"epochs": 0}, method, DataSize.of(choice_world)
    )
    assert run.settings.recipe == whole
    assert run.settings.method == ("melu" if method == "ridge" else method)
    assert (run.rater, run.settings.recipe.head) == (None, "choice")
    own = paml.train(choice_world, method, out=tmp_path / "own", epochs=0, head="choice", item_embedding=8)
    assert (own.settings.method, own.settings.recipe.item_embedding) == (method, 8)
    named = {"epochs": 0, "item_embedding": 12, "choice.taste_dropout": 0.1, "choice_method": "paml"}
    changed = paml.train(choice_world, method, out=tmp_path / "named", settings=named)
    assert changed.settings.method == "paml"
    assert (changed.settings.recipe.item_embedding, changed.settings.recipe.taste_dropout) == (12, 0.1)


def test_settings_that_do_not_suit_choices(choice_world: paml.Dataset, tmp_path: Path) -> None:
    for settings, message in (
        ({"recipe": "paper"}, "the recipe 'paper' says nothing about choices; use the recipe tuned"),
        ({"head": "value"}, "head 'value' does not fit a choice target"),
        ({"liked": 3}, "liked is 3; expected a value of the scale, above 0 and at most 2"),
        ({"item_embeding": 3}, "unknown setting 'item_embeding'"),
        ({"choice_method": "x"}, "unknown method 'x'"),
    ):
        with pytest.raises(SettingsError, match=message):
            paml.train(choice_world, out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
def test_clicks_train_too(method: str, click_world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(click_world, method, out=tmp_path / "run", settings=QUICK)
    summary = paml.summarise(run.evaluate())
    assert 0 < summary["nel"]["all"] < 0.3
    assert 0.4 < summary["auc"]["all"] <= 1
    assert summary["undefined"]["auc"] == int(run.evaluate()["auc"].is_nan().sum())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_lands_between_the_noise_floor_and_bias_fold_in(
    method: str, middle_world: paml.Dataset, tmp_path: Path
) -> None:
    run = paml.train(middle_world, method, recipe="tuned", out=tmp_path / "run", ensemble_size=1, epochs=8)
    mse = run.evaluate()["mse"].mean()
    test = SplitRows.of(middle_world, "test")
    bias = test.query_error(tuned_bias(middle_world).predict(test)).mean()
    assert middle_world.manifest.source.facts["best_mse"] < mse < bias


def test_personal_rates_differ_between_users_and_fixed_rates_do_not(world: paml.Dataset, tmp_path: Path) -> None:
    rates = {m: paml.train(world, m, out=tmp_path / m, settings=QUICK).evaluate()["rate"] for m in ("melu", "reg_paml")}
    assert rates["melu"].n_unique() == 1
    assert rates["reg_paml"].n_unique() > 10


def test_training_reads_nothing_of_test_users(world: paml.Dataset, tmp_path: Path) -> None:
    """Change every validation and test target but keep the manifest: with no validation, weights stay the same."""
    clean = paml.train(world, "reg_paml", out=tmp_path / "clean", settings={**QUICK, "epochs": 1})
    copy = Path(shutil.copytree(world.path, tmp_path / "data"))
    target = np.load(copy / "arrays" / "target.npy")
    target[world.array("offsets")[world.manifest.splits["train"][1]] :] = 1.0
    np.save(copy / "arrays" / "target.npy", target)
    with pytest.raises(FormatError, match=r"target.npy: differs from what was written"):
        paml.train(copy, "reg_paml", out=tmp_path / "changed", settings=QUICK)
    forge(copy)
    changed = paml.train(paml.open_data(copy), "reg_paml", out=tmp_path / "changed", settings={**QUICK, "epochs": 1})
    assert same_weights(clean, changed)


def command(data: paml.Dataset, out: Path, parts: str, *more: str) -> list[str]:
    settings = [
        f"{k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in PARTS[parts].items() if k != "epochs"
    ]
    program = (
        "from importlib import import_module; import_module('paml.training.loop').CHECKPOINT_BATCHES = 5;"
        "from paml.cli import main; main()"
    )
    arguments = ["train", str(data.path), "--method", "at_paml", "--out", str(out), "--threads", "1", *more]
    return [sys.executable, "-c", program, *arguments, *settings, "epochs=12", "index_every=5", "memory_index=kdtree"]


def saved_at(state: Path) -> int:
    return state.stat().st_mtime_ns if state.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["rating", "choice"])
def test_resume_after_kills_gives_bit_identical_weights(parts: str, middle_world: paml.Dataset, tmp_path: Path) -> None:
    """kill -9 at random moments, several times; AT-PAML with an approximate index is the hardest case."""
    subprocess.run(command(middle_world, tmp_path / "whole", parts), check=True, capture_output=True)
    rng, kills, log = random.Random(0), 0, []
    out = tmp_path / "killed"
    state = out / "resume" / "state.safetensors"
    for attempt in range(10):
        arguments = command(middle_world, out, parts, *(["--resume"] if out.exists() else []))
        with (tmp_path / "log").open("wb") as output:
            process = subprocess.Popen(arguments, stdout=output, stderr=output, start_new_session=True)
        before = saved_at(state)
        while process.poll() is None and saved_at(state) == before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.5))
        if process.poll() is not None or kills == 4:
            assert process.wait() == 0, (tmp_path / "log").read_text()
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        where = checkpoint.load(state)[1] if state.exists() else {"epoch": 0, "batch": 0}
        log.append(f"attempt {attempt}: killed, state at epoch {where['epoch']}, batch {where['batch']}")
    print("\n" + "\n".join(log))  # noqa: T201
    assert kills >= 2
    whole, killed = paml.load(tmp_path / "whole"), paml.load(out)
    assert same_weights(whole, killed)
    losses = [
        [json.loads(line)["loss"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        for run in (whole, killed)
    ]
    assert losses[0] == losses[1]


def test_resume_needs_the_same_settings(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, "paml", out=tmp_path / "run", settings=QUICK)
    with pytest.raises(PamlError, match="already exists; choose another folder, or reuse"):
        paml.train(world, "paml", out=run.path, settings=QUICK)
    with pytest.raises(SettingsError, match=r"run: was begun with other settings \(gamma was 0.001, now 0.5\); repeat"):
        paml.train(world, "paml", out=run.path, reuse=True, settings={**QUICK, "gamma": 0.5})
    assert paml.train(world, "paml", out=run.path, reuse=True, settings=QUICK).settings == run.settings


def test_a_folder_that_cannot_be_looked_at_is_named(world: paml.Dataset, tmp_path: Path) -> None:
    """As one of another user's would be; the library, too, says which and what to do."""
    with pytest.raises(PamlError, match=r"cannot be read .*; choose another folder"):
        paml.train(world, out=tmp_path / ("x" * 300), epochs=1, ensemble_size=1)


def test_a_run_that_cannot_start_leaves_nothing_behind(world: paml.Dataset, tmp_path: Path) -> None:
    for wrong, message in (
        ({"device": "warp"}, "device 'warp' cannot be used"),
        ({"device": "hpu"}, "device 'hpu' cannot be used"),  # torch knows the name, and has no module for it
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"seed": 2**63}, "seed is 9223372036854775808; expected"),
        ({"seed": 0.5}, "seed is 0.5; expected"),
        ({"head": "click"}, "does not fit"),
        ({"hidden": (10**12, 10**12)}, "cannot be built"),
    ):
        with pytest.raises(SettingsError, match=message):
            paml.train(world, "paml", out=tmp_path / "run", **wrong)  # type: ignore[arg-type]
        assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()  # as after a kill before the first file
    assert paml.train(world, "paml", out=tmp_path / "run", reuse=True, settings=QUICK).settings.method == "paml"


@pytest.mark.parametrize("method", ["_differentiated", "_validate", "_finish"])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: 9 bytes.\nMore"),
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
    ],
)
def test_too_little_memory_in_the_middle_of_a_training_is_one_line(
    error: Exception, method: str, world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes are known beforehand, what a step needs is not."""

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(Trainer, method, fails)
    with pytest.raises(
        TooLarge, match=r"run: there is not enough memory to train \(.+\); .* smaller batch_size"
    ) as found:
        paml.train(world, "melu", out=tmp_path / "run", settings=QUICK)
    assert "\n" not in str(found.value)
    error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        paml.train(world, "melu", out=tmp_path / "other", settings=QUICK)


def test_a_loss_that_is_not_finite_names_epoch_batch_and_users(world: paml.Dataset, tmp_path: Path) -> None:
    settings = {**QUICK, "outer_rate": 1e18, "clip_norm": 0}
    with pytest.raises(TrainingError, match=r"is (nan|inf).* epoch \d.*lower outer_rate"):
        paml.train(world, "melu", out=tmp_path / "run", settings=settings)


def test_early_stop_keeps_the_best_epoch(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(
        world, "melu", out=tmp_path / "run", settings={**QUICK, "epochs": 40, "patience": 2, "outer_rate": 0.03}
    )
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    values = [line["validation_mse"] for line in lines]
    assert run.settings.summary["best_epoch"] == int(np.argmin(values)) + 1
    assert len(values) == run.settings.summary["best_epoch"] + 2 < 40
    assert run.evaluate(split="validation")["mse"].mean() == pytest.approx(min(values), rel=1e-5)


def test_zero_epochs_and_no_validation_users(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=100, items=40, user_ratio="1:0:0")
    run = paml.train(data, "melu", out=tmp_path / "run", settings={**QUICK, "epochs": 0})
    assert run.settings.summary["best_epoch"] == 0
    trained = paml.train(data, "melu", out=tmp_path / "other", settings=QUICK)
    assert trained.settings.summary["best_epoch"] == 2
    with pytest.raises(SettingsError, match="the data set has no 'test' users; prepare it with another user_ratio"):
        paml.evaluate(trained)
    assert not (trained.path / "rows.parquet").exists()


def test_patience_needs_validation_users_if_it_is_asked_for(
    tmp_path: Path, world: paml.Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe's own is for all data sets; without validation users no epoch is the best."""
    data = paml.prepare("synthetic", out=tmp_path / "data", users=100, items=40, user_ratio="1:0:0")
    both = {**PARTS["both"], "choice.patience": "2"}
    for settings, name in (({**QUICK, "patience": 1}, "patience is 1"), (both, r"choice.patience is 2")):
        with pytest.raises(SettingsError, match=rf"{name}, and the data set has no validation users to stop by; leave"):
            paml.train(data, "melu", out=tmp_path / "run", settings=settings)
    with pytest.raises(
        SettingsError, match=r"'melu patience=1': patience is 1, and the data set has no validation users"
    ):
        paml.compare(data, [], baselines=[], variants=["melu patience=1"], out=tmp_path / "run", settings=QUICK)
    assert not [*(tmp_path / "run").glob("*")]
    run = paml.train(data, "melu", out=tmp_path / "run", settings={**QUICK, "patience": "0"})
    judged = paml.train(world, "melu", out=tmp_path / "judged", settings=QUICK)
    for one, is_judged in ((run, False), (judged, True)):
        render_training(standard_output(), one)
        shown = capsys.readouterr().out
        assert ("best" in shown) == is_judged
        assert ("no users, so the last epoch is kept" in shown) == (not is_judged)
        assert ("the best is" in one._repr_html_()) == is_judged


def test_unknown_and_damaged_runs_are_refused(world: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such run"):
        paml.load(tmp_path / "nowhere")
    run = paml.train(world, "melu", out=tmp_path / "run", settings=QUICK)
    path = run.path / "weights.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-100])
    with pytest.raises(FormatError, match="not a complete safetensors file"):
        paml.load(run.path)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(FormatError, match="differs from its digest"):
        paml.load(run.path)
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(FormatError, match="has format None"):
        paml.load(run.path)
    path.unlink()
    with pytest.raises(FormatError, match="training has not finished; resume the training"):
        paml.load(run.path)
    path.write_bytes(good)
    settings = run.path / "settings.json"
    values = json.loads(settings.read_text())
    settings.write_text(json.dumps({**values, "recipe": {**values["recipe"], "hidden": [4, 4]}}))
    with pytest.raises(FormatError, match=r"settings.json: was edited"):
        paml.load(run.path)


def test_replaced_or_edited_parts_of_runs_are_refused(world: paml.Dataset, tmp_path: Path) -> None:
    runs = [paml.train(world, "paml", out=tmp_path / str(seed), seed=seed, settings=QUICK) for seed in (0, 1)]
    shutil.copy(runs[1].path / "weights.safetensors", runs[0].path)
    with pytest.raises(FormatError, match="do not belong together"):
        paml.load(runs[0].path)
    found = runs[1].settings
    write_settings(runs[1].path, found.model_copy(update={"recipe": found.recipe.model_copy(update={"gamma": 0.9})}))
    with pytest.raises(FormatError, match="do not belong together"):
        paml.load(runs[1].path)


def test_items_unknown_in_training_share_one_code(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, "melu", out=tmp_path / "run", settings=QUICK)
    codes = run.ensemble.members[0].network.items.known.codes_I.numpy()
    end = world.array("offsets")[world.manifest.splits["train"][1]]
    interacted = np.unique(world.array("item")[:end])
    assert np.array_equal(np.flatnonzero(codes), interacted)
    assert np.array_equal(codes[interacted], np.arange(1, len(interacted) + 1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("missing", ["users", "items"])
def test_data_without_profiles_or_item_content(method: str, missing: str, tables: Path, tmp_path: Path) -> None:
    schema = tables / "schema.toml"
    head, _, tail = schema.read_text().partition(f"[{missing}.fields]")
    rest = tail[tail.index("[items]") :] if missing == "users" else ""
    schema.write_text(head + rest)
    data = paml.prepare("tables", tables, tmp_path / "data", cold_share=1)
    for name, size in (("a", 0), ("b", 4)):
        form = {
            "item_embedding": size,
            **({} if size else {"network": "fields", "prior_from_profile": 0, "prior_from_items": 0}),
        }
        run = paml.train(data, method, out=tmp_path / name, settings={**QUICK, **form, "epochs": 1})
        assert run.evaluate()["mse"].is_finite().all()


def test_fields_may_have_the_names_of_module_attributes(tables: Path, tmp_path: Path) -> None:
    schema = tables / "schema.toml"
    schema.write_text(
        schema.read_text().replace('gender = "categorical"', 'type = { kind = "categorical", column = "gender" }')
    )
    data = paml.prepare("tables", tables, tmp_path / "data", cold_share=1)
    assert paml.train(data, "paml", out=tmp_path / "run", settings=QUICK).evaluate()["mse"].is_finite().all()


@pytest.mark.parametrize("index", ["exact", "kdtree", "hnsw"])
def test_memory_without_warm_up(index: str, world: paml.Dataset, tmp_path: Path) -> None:
    settings = {**QUICK, "warmup_epochs": 0, "memory_index": index, "neighbours": 100_000, "epochs": 1}
    assert paml.train(world, "at_paml", out=tmp_path / "run", settings=settings).evaluate()["mse"].is_finite().all()


def test_a_run_refuses_another_data_set(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, "melu", out=tmp_path / "run", settings={**QUICK, "epochs": 1})
    other = paml.prepare("synthetic", out=tmp_path / "other", users=400, items=80, seed=5)
    with pytest.raises(FormatError, match="the run was trained on"):
        paml.evaluate(run, other)


@pytest.mark.parametrize("index", ["exact", "kdtree", "hnsw"])
def test_the_memory_reports_its_recall(index: str, world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, "at_paml", out=tmp_path / "run", settings={**QUICK, "memory_index": index})
    summary = run.settings.summary
    assert summary["memory_nodes"] == 150
    assert summary["memory_recall"] == 1.0 if index == "exact" else summary["memory_recall"] > 0.5


def test_fields_can_be_excluded(world: paml.Dataset, tmp_path: Path) -> None:
    settings = {**QUICK, "exclude_fields": "user.zip,item.genre,item.year"}
    run = paml.train(world, "reg_paml", out=tmp_path / "run", settings=settings)
    assert [field.name for field in run.settings.data_schema.user] == ["gender", "age", "occupation"]
    assert [field.name for field in run.settings.data_schema.features("item")] == ["director"]
    assert run.ensemble.members[0].network.user.width == 3 * run.settings.recipe.embedding_size
    assert len(paml.load(run.path).evaluate()) == len(run.evaluate())
    with pytest.raises(SettingsError, match=r"no field 'item.gender' to leave out; did you mean 'item.genre'"):
        paml.train(world, out=tmp_path / "other", exclude_fields="item.gender")


def test_recipes() -> None:
    assert recipe_names() == ["paper", "tuned"]
    assert load_recipe("paper", "paml", {"exclude_fields": ""}, "ml-1m").exclude_fields == ()
    with pytest.raises(SettingsError, match="unknown recipe 'papper'; did you mean 'paper'"):
        load_recipe("papper", "paml", {})
    with pytest.raises(SettingsError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        load_recipe("paper", "paml", {"epoch": 1})
    with pytest.raises(SettingsError, match="hidden"):
        load_recipe("paper", "paml", {"hidden": "3,x"})


def test_a_recipe_file_may_be_named_in_another_way(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted training goes on, from another folder or by an absolute path."""

    def interrupt(epoch: int, value: float | None) -> None:
        raise KeyboardInterrupt

    (tmp_path / "r.toml").write_text("epochs = 2\nhidden = [8]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        paml.train(world, "melu", "r.toml", out=tmp_path / "run", on_epoch=interrupt)
    run = paml.train(world, "melu", tmp_path / "r.toml", out=tmp_path / "run", reuse=True)
    assert run.settings.summary["epochs"] == 2
    assert run.settings.recipe_name == "r.toml"
    again = paml.train(world, "melu", "./r.toml", out=tmp_path / "run", reuse=True)
    assert again.settings == run.settings


def test_weights_that_are_not_finite_are_no_run(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody validates, and the last step has overflowed."""
    monkeypatch.setattr(Trainer, "_validate", lambda trainer: None)
    step = OuterOptimizer.step

    def overflow(optimizer: OuterOptimizer) -> None:
        step(optimizer)
        optimizer._learned[0].data.fill_(float("nan"))

    monkeypatch.setattr(OuterOptimizer, "step", overflow)
    with pytest.raises(TrainingError, match="a weight is not finite after epoch 1"):
        paml.train(world, "melu", "paper", out=tmp_path / "run", epochs=1, batch_size=1000)
