"""Runs with a part for ratings and one for choice: interrupted anywhere, resumed, incomplete, damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import paml
from paml.episodes import candidates
from paml.errors import FormatError, PamlError, SettingsError
from paml.testing.methods import same_weights
from paml.training import checkpoint, loop
from paml.training.loop import Trainer
from training.test_loop import PARTS

Interrupt = Callable[[int], None]
METHODS = {"rating": "at_paml", "choice": "at_paml", "both": "melu"}


class StoppedError(Exception):
    """As by a kill."""


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Checkpoints after every third batch; the next training is stopped after some steps, if that many are left."""
    step, left = Trainer._outer_step, [10**9]

    def counted(trainer: Trainer, *given: Any) -> float:
        if left[0] == 0:
            raise StoppedError
        left[0] -= 1
        return step(trainer, *given)

    monkeypatch.setattr(Trainer, "_outer_step", counted)
    monkeypatch.setattr(loop, "CHECKPOINT_BATCHES", 3)

    def stop(steps: int) -> None:
        left[0] = steps

    return stop


@pytest.mark.parametrize("parts", PARTS)
def test_a_training_that_is_stopped_and_resumed_ends_with_equal_weights(
    parts: str, world: paml.Dataset, tmp_path: Path, stop_after: Interrupt
) -> None:
    method = METHODS[parts]
    settings = {
        **PARTS[parts],
        "batch_size": 32,
        "index_every": 3,
        **({"choice.index_every": 3, "choice.taste_dropout": 0.3} if parts != "rating" else {}),
    }
    whole = paml.train(world, method, out=tmp_path / "whole", settings=settings)
    stops = 0
    while True:
        stop_after(5)
        try:
            run = paml.train(world, method, out=tmp_path / "run", settings=settings, reuse=stops > 0)
            break
        except StoppedError:
            stops += 1
            with pytest.raises(FormatError, match=r"has not finished|no such run"):
                paml.load(tmp_path / "run")
    assert stops > 1
    assert same_weights(whole, run)
    assert not list(tmp_path.glob("run/**/resume"))


@pytest.fixture(scope="module")
def trained(world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> paml.Run:
    return paml.train(world, "melu", out=tmp_path_factory.mktemp("both") / "run", settings=PARTS["both"])


@pytest.fixture
def run(trained: paml.Run, tmp_path: Path) -> paml.Run:
    """A copy of a run with both parts, to be changed."""
    shutil.copytree(trained.path, tmp_path / "run")
    return paml.load(tmp_path / "run")


def resume(data: paml.Dataset, run: paml.Run) -> paml.Run:
    return paml.train(data, "melu", out=run.path, settings=PARTS["both"], reuse=True)


def test_both_parts_are_there(run: paml.Run) -> None:
    assert run.rater is run.ensemble
    assert run.chooser is run.choice is not None
    assert run.preference is not None
    assert not run.rater.members[0].head.over_items
    assert run.chooser.members[0].head.over_items
    assert run.settings.recipe.head == "auto"


def test_a_finished_rating_part_is_not_trained_again(
    world: paml.Dataset, trained: paml.Run, run: paml.Run, stop_after: Interrupt
) -> None:
    """As after a kill between the parts, and within the second."""
    shutil.rmtree(run.path / "choice")
    (run.path / "preference.safetensors").unlink()
    with pytest.raises(FormatError, match="has not finished"):
        paml.load(run.path)
    before = (run.path / "weights.safetensors").stat().st_mtime_ns
    stop_after(4)
    with pytest.raises(StoppedError):
        resume(world, run)
    with pytest.raises(FormatError, match="training has not finished; resume the training"):
        paml.load(run.path)
    stop_after(1000)
    assert same_weights(resume(world, run), trained)
    assert (run.path / "weights.safetensors").stat().st_mtime_ns == before


def test_what_a_kill_after_the_weights_has_left_is_removed(world: paml.Dataset, run: paml.Run) -> None:
    for folder in (run.path, run.path / "choice"):
        (folder / "resume").mkdir()
        (folder / "resume" / "state.safetensors").touch()
        (folder / ".settings.json.partial").touch()
    resume(world, run)
    assert not [*run.path.rglob("resume"), *run.path.rglob(".*")]


def test_a_missing_preference_is_made_again(
    world: paml.Dataset, trained: paml.Run, run: paml.Run, stop_after: Interrupt
) -> None:
    """As after a kill before it was written; neither part is trained again."""
    (run.path / "preference.safetensors").unlink()
    with pytest.raises(FormatError, match="training has not finished; resume the training"):
        paml.load(run.path)
    stop_after(0)
    again = resume(world, run)
    assert same_weights(again, trained)
    assert again.preference is not None
    assert trained.preference is not None
    assert again.preference.blend == trained.preference.blend


def test_a_tampered_or_foreign_preference_is_refused(world: paml.Dataset, run: paml.Run, tmp_path: Path) -> None:
    file = run.path / "preference.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-50])
    with pytest.raises(FormatError, match=r"preference.safetensors: not a complete safetensors file"):
        paml.load(run.path)
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"preference.safetensors: differs from its digest"):
        paml.load(run.path)
    file.write_bytes(good)
    tensors, values, _ = checkpoint.load(file)
    checkpoint.save(file, {name: tensor for name, tensor in tensors.items() if name != "few_KK"}, values)
    with pytest.raises(FormatError, match="does not belong to the run's parts; train again"):
        paml.load(run.path)
    settings = {**PARTS["both"], "epochs": 0}
    other = paml.train(world, "melu", out=tmp_path / "other", seed=5, settings=settings)
    shutil.copy(other.path / "preference.safetensors", file)
    with pytest.raises(FormatError, match="does not belong to the run's parts; train again"):
        paml.load(run.path)


def test_a_damaged_choice_part_is_refused(run: paml.Run) -> None:
    file = run.path / "choice" / "weights.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"choice/weights.safetensors: differs from its digest"):
        paml.load(run.path)
    file.unlink()
    with pytest.raises(FormatError, match="choice: training has not finished; resume the training"):
        paml.load(run.path)
    shutil.copy(run.path / "weights.safetensors", file)
    with pytest.raises(FormatError, match="choice: weights and settings do not belong together"):
        paml.load(run.path)


def test_the_choice_part_must_be_resumed_with_the_same_settings(world: paml.Dataset, run: paml.Run) -> None:
    settings = {**PARTS["both"], "choice.inner_rate": 0.5}
    with pytest.raises(
        SettingsError, match=r"choice: was begun with other settings \(inner_rate was [0-9.]+, now 0.5\)"
    ):
        paml.train(world, "melu", out=run.path, settings=settings, reuse=True)
    with pytest.raises(PamlError, match="already exists; choose another folder, or reuse"):
        paml.train(world, "melu", out=run.path, settings=PARTS["both"])


def test_the_choice_part_may_have_another_method(world: paml.Dataset, tmp_path: Path) -> None:
    settings = {**PARTS["both"], "choice_method": "ridge", "epochs": 1}
    run = paml.train(world, "paml", out=tmp_path / "run", settings=settings)
    assert run.chooser is not None
    assert type(run.chooser.members[0].solver).__name__ == "ClosedForm"
    assert run.settings.method == "paml"
    with pytest.raises(SettingsError, match="unknown method 'rigde'; did you mean 'ridge'"):
        paml.train(world, "paml", out=tmp_path / "other", settings={**settings, "choice_method": "rigde"})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("method", ["melu", "ridge"])
def test_large_catalogues_train_on_samples_and_rank_all_items(
    method: str, world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample changes what is learned, but little; whether it was one is not to be seen in use."""
    settings = {**PARTS["choice"], "epochs": 4}
    exact = paml.train(world, method, out=tmp_path / "exact", settings=settings)
    monkeypatch.setattr(candidates, "MAX_EXACT", 10)
    sampled = paml.train(world, method, out=tmp_path / "sampled", settings={**settings, "sampled_items": 20})
    assert not same_weights(exact, sampled)
    losses = [run.settings.summary["best_validation"] for run in (exact, sampled)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert len(sampled.adapt(ratings={"3": 5.0}).scores()) == 80


@pytest.mark.parametrize("parts", ["choice", "both"])
def test_contexts_are_no_inputs_of_a_choice(parts: str, tables: Path, tmp_path: Path) -> None:
    schema = tables / "schema.toml"
    schema.write_text(
        schema.read_text().replace('time = "when"', 'context = { late = { kind = "numeric", column = "when" } }')
    )
    data = paml.prepare("tables", tables, tmp_path / "data", cold_share=1)
    run = paml.train(data, "ridge", out=tmp_path / "run", settings={**PARTS[parts], "epochs": 1})
    user = run.adapt({}, [paml.Rating("3", 5, {"late": 1003})])
    at_ten, at_one = (user.scores({"late": when}, by="choice") for when in (1010, 1001))
    assert (at_ten == at_one).all()
    assert run.chooser is not None
    assert not run.chooser.members[0].network.context.fields
    assert bool(run.ensemble.members[0].network.context.fields) == (parts == "both")
    assert 0 < paml.evaluate(run)["ndcg10"]["all"] <= 1


def test_without_validation_users_both_parts_train(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=60, items=40, user_ratio="1:0:0")
    run = paml.train(data, "melu", out=tmp_path / "run", settings={**PARTS["both"], "epochs": 1})
    assert run.preference is not None
    assert torch.from_numpy(run.adapt(ratings={"3": 5.0}).scores()).isfinite().all()


def test_the_settings_of_all_parts_are_known_from_the_first_step(
    world: paml.Dataset, trained: paml.Run, tmp_path: Path, stop_after: Interrupt
) -> None:
    """Stopped in the rating part, a training goes on with the choice part that it was begun with, and no other."""
    out = tmp_path / "run"
    stop_after(4)
    with pytest.raises(StoppedError):
        paml.train(world, "melu", out=out, settings=PARTS["both"])
    with pytest.raises(FormatError, match="training has not finished; resume the training"):
        paml.load(out)
    other = {**PARTS["both"], "choice.inner_rate": 0.5}
    with pytest.raises(
        SettingsError, match=r"choice: was begun with other settings \(inner_rate was [0-9.]+, now 0.5\)"
    ):
        paml.train(world, "melu", out=out, settings=other, reuse=True)
    shutil.rmtree(out / "choice")  # as after a kill between the two files
    stop_after(1000)
    again = paml.train(world, "melu", out=out, settings=PARTS["both"], reuse=True)
    assert same_weights(again, trained)
