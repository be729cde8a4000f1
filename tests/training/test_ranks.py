"""Several processes train one run as one process does: the same losses, checkpoints for any number, kills survived."""

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import paml
from paml.episodes.batches import Loader, Share
from paml.episodes.candidates import Candidates
from paml.episodes.tasks import Tasks
from paml.errors import InUse, PamlError, SettingsError
from paml.locks import hold
from paml.training import checkpoint, rowwise
from paml.training.parallel import own_members, share_of
from paml.training.ranks import Ranks, in_turn
from torchruns import ended, history, torchrun, two_machines
from waiting import wait_until

ONE_STEP = {"batch_size": 1000, "epochs": 4, "memory_size": 150, "choice.memory_size": 150}
"""An epoch is one step, so that the losses of epochs are those of steps."""
SMALL = {**ONE_STEP, "ensemble_size": 1, "item_embedding": 8, "choice.item_embedding": 8}
ALONE = {name: value for name, value in SMALL.items() if "choice" not in name} | {"choice_part": False}
"""The rating part by itself."""
CASES = {
    "ridge": ("ridge", SMALL),
    "reg_paml": ("reg_paml", SMALL),
    "at_paml": ("at_paml", {**SMALL, "ensemble_size": 2, "choice.ensemble_size": 1}),
    "transfer": ("transfer", ALONE),
    "one_user": ("at_paml", {**ALONE, "batch_size": 221, "few_shot_share": 0.5}),
    "by_rows": ("melu", {**SMALL, "head": "choice"}),
    "members": ("ridge", {"epochs": 2, "ensemble_size": 3, "batch_size": 64}),
}
SCRIPT = """
import json, sys
import paml
from paml.training import rowwise

data, out, cases = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
for name, (method, settings) in cases.items():
    rowwise.MIN_ROWS = 20 if name == "by_rows" else 50_000
    parallel = "members" if name == "members" else "users"
    paml.train(data, method, out=f"{out}/{name}", parallel=parallel, settings=settings)
"""


@pytest.mark.slow
def test_ranks_train_as_one_process_does(world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of every step to 1e-5, of both parts; by members, the same weights bit by bit."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (process,) = torchrun(script, world.path, tmp_path / "two", json.dumps(CASES))
    code, output = ended(process)
    assert code == 0, output
    for name, (method, settings) in CASES.items():
        monkeypatch.setattr(rowwise, "MIN_ROWS", 20 if name == "by_rows" else 50_000)
        run = paml.train(world, method, out=tmp_path / "one" / name, settings=settings)
        alone, together = history(run.path), history(tmp_path / "two" / name)
        assert len(alone) >= settings["epochs"]  # type: ignore[index]
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5, err_msg=name)
        assert paml.load(tmp_path / "two" / name).evaluate().shape == run.evaluate().shape
    for file in ("weights.safetensors", "choice/weights.safetensors", "preference.safetensors"):
        assert (tmp_path / "one" / "members" / file).read_bytes() == (tmp_path / "two" / "members" / file).read_bytes()


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_one_process_may_continue(world: paml.Dataset, tmp_path: Path) -> None:
    """kill -9 of one rank, then of all; nothing is lost, and one process ends what two have begun."""
    settings = {**ALONE, "epochs": 60, "patience": 0}
    whole = paml.train(world, "at_paml", out=tmp_path / "whole", settings=settings)
    out, rng = tmp_path / "killed", random.Random(0)
    words = [f"{name}={value}" for name, value in settings.items()]
    (process,) = torchrun("-m", "paml", "train", world.path, *words, "--method", "at_paml", "--out", out, restarts=3)
    metrics = out / "metrics.jsonl"
    wait_until(lambda: metrics.exists() or process.poll() is not None, "no epoch ended")
    os.kill(rng.choice(_children(process.pid)), signal.SIGKILL)
    epochs = len(metrics.read_text().splitlines())
    wait_until(
        lambda: len(metrics.read_text().splitlines()) > epochs + 3 or process.poll() is not None, "it did not go on"
    )
    assert process.poll() is None, ended(process)
    for child in _children(process.pid):
        os.kill(child, signal.SIGKILL)
    process.kill()
    ended(process)
    begun = checkpoint.load(out / "resume" / "state.safetensors").values
    assert epochs < begun["epoch"] < 60
    resumed = paml.train(world, "at_paml", out=out, reuse=True, settings=settings)
    np.testing.assert_allclose(history(resumed.path), history(whole.path), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_two_machines_train_as_one_process_does_and_continue_what_it_began(world: paml.Dataset, tmp_path: Path) -> None:
    """Four ranks on two nodes, each with a network of its own: AT-PAML's memory, and a checkpoint of one process."""
    settings = {**ALONE, "patience": 0}
    whole = paml.train(world, "at_paml", out=tmp_path / "whole", settings=settings)
    begun = tmp_path / "begun"

    def interrupt(epoch: int, value: float | None) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        paml.train(world, "at_paml", out=begun, on_epoch=interrupt, settings=settings)
    assert checkpoint.load(begun / "resume" / "state.safetensors").values["epoch"] == 2
    words = [f"{name}={value}" for name, value in settings.items()]
    with two_machines() as nodes:
        for out, more in ((tmp_path / "together", []), (begun, ["--resume"])):
            command = ["-m", "paml", "train", world.path, *words, "--method", "at_paml", "--out", out, *more]
            both = [ended(node) for node in torchrun(*command, nodes=nodes)]  # neither outlives its network
            assert [code for code, _ in both] == [0, 0], both
            np.testing.assert_allclose(history(out), history(whole.path), rtol=0, atol=1e-5)
            assert paml.load(out).evaluate().shape == whole.evaluate().shape


def test_a_restart_goes_on_with_what_its_own_job_has_begun(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there before is refused in every attempt, also if an earlier job had the same name."""

    def attempt(job: str, restarts: int, out: str, stop: bool = False) -> paml.Run:
        def interrupt(epoch: int, value: float | None) -> None:
            if stop:
                raise KeyboardInterrupt

        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        settings = {**ALONE, "epochs": 2}
        return paml.train(world, "melu", out=tmp_path / out, on_epoch=interrupt, settings=settings)

    with pytest.raises(KeyboardInterrupt):
        attempt("first", 0, "run", stop=True)
    finished = attempt("first", 1, "run")
    assert attempt("first", 2, "run").settings == finished.settings  # the last rank was lost when all was written
    for job in ("second", "first"):
        for restarts in (0, 1, 2):
            with pytest.raises(PamlError, match="already exists"):
                attempt(job, restarts, "run")
    with pytest.raises(KeyboardInterrupt):
        attempt("again", 0, "other", stop=True)
    lock = hold(tmp_path / "other" / ".lock", tmp_path / "other", "training in it")
    with lock, pytest.raises(InUse):  # by a job of the same name, whose mark stays where it is
        attempt("again", 0, "other")
    assert attempt("again", 1, "other").settings.summary["epochs"] == 2
    with pytest.raises(KeyboardInterrupt):
        attempt("third", 1, "early", stop=True)  # nothing was there: its first attempt has not come so far
    assert attempt("third", 2, "early").settings.summary["epochs"] == 2


def _children(process: int) -> list[int]:
    """The ranks that torchrun has started, once they are all there."""
    file = Path(f"/proc/{process}/task/{process}/children")
    wait_until(lambda: len(file.read_text().split()) == 2, "two ranks did not start")
    return [int(word) for word in file.read_text().split()]


@pytest.mark.parametrize("head", ["rating", "choice"])
def test_shares_are_the_whole(head: str, world: paml.Dataset) -> None:
    """Every user is in one share, with the same rows; candidates, and whatever is random, are those of the batch."""
    candidates = Candidates(world, 100) if head == "choice" else None
    loader = Loader(world, candidates=candidates)
    batch = next(Tasks.of(world, "train").episodes(5, np.random.default_rng(0)))
    whole = loader.load(batch)
    shares = [loader.load(batch, share=Share(slice(rank, None, 2))) for rank in range(2)]
    users = [torch.from_numpy(share.user_B) for share in shares]
    assert torch.equal(in_turn(users), torch.from_numpy(whole.user_B))
    items = [share.item_N[share.support.index_BR] for share in shares]
    assert torch.equal(in_turn(items), whole.item_N[whole.support.index_BR])
    assert torch.equal(in_turn([share.query.y_BR for share in shares]), whole.query.y_BR)
    for share in shares:
        assert share.whole is not None
        assert np.array_equal(share.whole.support_index(), whole.support.index_BR.numpy())
        assert (head == "rating") or torch.equal(share.item_N, whole.item_N)


def test_who_takes_what() -> None:
    assert share_of(Ranks(), 5) is None
    last = Ranks()
    last.rank, last.size = 2, 3
    assert share_of(last, 5) == Share(slice(2, None, 3))
    assert share_of(last, 2) == Share(slice(0, 1), counts=False)
    assert own_members(last, 7) == [2, 5]
    assert own_members(Ranks(), 2) == [0, 1]


def test_unknown_ways_to_share_are_refused(world: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="parallel is 'rows'; expected users or members"):
        paml.train(world, out=tmp_path / "run", parallel="rows")
