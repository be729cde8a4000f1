"""The only outer loop: batches of users, Adam, validation each epoch, the best epoch kept, resumable.

A training run that is killed at any moment and resumed ends with bit-identical weights, on a CPU: the state holds
parameters, the optimiser, AT-PAML's memory, and the generators as they were at the start of the epoch, to draw its
batches again. GPUs add rows of tables in an order that changes.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.episodes.batches import Loader, TensorBatch
from paml.episodes.candidates import Candidates
from paml.episodes.tasks import TaskBatch, Tasks
from paml.errors import FormatError, TrainingError
from paml.evaluation.metrics import headline
from paml.evaluation.scoring import choice_loss, evaluate_tasks
from paml.files import listed, write_text
from paml.methods.learner import Ensemble, Learner
from paml.methods.merge import settings_in_use
from paml.methods.objectives import MetaLoss, ObjectiveSettings
from paml.methods.registry import build_ensemble, find_method, fit_to_data
from paml.progress import Progress, Step
from paml.recommend.catalogue import write_catalogue
from paml.recommend.rate_profile import write_reference_users
from paml.training import checkpoint
from paml.training.ahead import Ahead
from paml.training.capacity import enough_memory
from paml.training.ema import WeightAverage
from paml.training.loggers import OpenLogger, Training, logging_to
from paml.training.merging import merged
from paml.training.optim import OuterOptimizer
from paml.training.parallel import exchange_members, own_members, share_of, shared_gradients, weight_of
from paml.training.position import Position
from paml.training.ranks import Ranks
from paml.training.recipe import OuterSettings
from paml.training.run import METRICS, WEIGHTS, RunSettings, companions, load_state, write_settings

CHECKPOINT_BATCHES = 1000  # and after every epoch
NoSolutionError = torch.linalg.LinAlgError  # type: ignore[attr-defined]
CHOICE_LOSS = "choice_loss"
"""What training watches where the head is choice: the mean loss of validation users."""
OnEpoch = Callable[[int, float | None], None]


class Trainer:
    """One training: ensemble, optimiser, and position."""

    def __init__(
        self,
        data: Dataset,
        settings: RunSettings,
        folder: Path,
        device: torch.device,
        loggers: Sequence[OpenLogger],
        part: str,
        ranks: Ranks,
        *,
        by_members: bool,
    ) -> None:
        """`loggers` get every epoch; `part` is the part of the run that is trained, if not the first.

        Several `ranks` share the users of every batch or, `by_members`, the members, if these are enough.
        """
        self._data, self._settings, self._folder = data, settings, folder
        self._outer = settings.recipe.part(OuterSettings)
        rng = torch.Generator().manual_seed(settings.seed)
        self._ensemble: Ensemble = build_ensemble(settings.method, settings.shape(), settings.recipe, rng)
        fit_to_data(self._ensemble.members, data)
        self._ensemble.to(device)
        self._objective = find_method(settings.method).objective(settings.recipe.part(ObjectiveSettings))
        self._optimizer = OuterOptimizer(self._ensemble, self._outer)
        self._ranks = ranks
        self._by_members = by_members and 1 < ranks.size <= len(self._ensemble.members)
        self._own = own_members(ranks if self._by_members else Ranks(), len(self._ensemble.members))
        self._average = WeightAverage(self._ensemble, self._outer.ema_decay)
        self._tasks, self._device = Tasks.of(data, "train"), device
        chooses = self._ensemble.members[0].head.over_items
        # what comes next is chosen, whatever the ratings are: where test users are split by time, so are episodes
        self._in_order = chooses and data.manifest.protocol.support_by == "time"
        self._metric = CHOICE_LOSS if chooses else headline(data.schema.target.kind).name
        candidates = Candidates(data, self._outer.sampled_items) if chooses else None
        self._loader = Loader(data, self._ensemble.inputs, device, candidates=candidates)
        # members see different episodes: with the same data in the same order they would make the same errors
        streams = [[settings.seed, 3], *([settings.seed, 3, k] for k in range(1, len(self._ensemble.members)))]
        self._rngs = [np.random.default_rng(stream) for stream in streams]
        self._position = Position(generators=_states(self._rngs))
        self._best: dict[str, Tensor] = self._copy_of_weights()
        self._loggers, self._part = loggers if ranks.is_first else (), part
        every = settings.recipe.index_every  # so that the memory's index is rebuilt where training may resume
        self._checkpoint_batches = every * -(-CHECKPOINT_BATCHES // every)

    def run(self, progress: Progress, on_epoch: OnEpoch | None = None) -> None:
        """Train to the last epoch or until validation stops improving, then write the weights of the best epoch."""
        if self._ranks.first(self._state_file.exists):
            self._restore()
            self._ranks.wait()  # the file may be replaced from now on
        position, outer = self._position, self._outer
        total = outer.epochs * len(self._tasks)
        with (
            logging_to(self._loggers, self._described()) as log,
            progress.step(f"training {self._settings.method}", total) as step,
        ):
            for line in position.history:
                log(line)
            step.advance(position.epoch * len(self._tasks) + position.users_done)
            while position.epoch < outer.epochs and not position.has_stalled(outer.patience):
                with enough_memory(self._folder):
                    self._run_epoch(step)
                log(position.history[-1])
                if on_epoch is not None:
                    on_epoch(position.epoch, position.history[-1][f"validation_{self._metric}"])
        self._ensemble.load_state_dict(self._best)
        with enough_memory(self._folder):
            self._ranks.first(lambda: self._finish(progress))

    def _run_epoch(self, step: Step) -> None:
        position, outer = self._position, self._outer
        for rng, state in zip(self._rngs, position.generators, strict=True):
            rng.bit_generator.state = state
        for member in self._ensemble.members:
            member.rates.begin_epoch(position.epoch)
        self._optimizer.begin_epoch(position.epoch)
        episodes = [
            self._tasks.episodes(
                outer.batch_size,
                rng,
                support_share=outer.support_share,
                random_support=outer.random_support,
                few_shot_share=outer.few_shot_share,
                in_order=self._in_order,
            )
            for rng in (self._rngs[k] for k in self._own)
        ]
        started, users_before = time.perf_counter(), position.users_done
        left = islice(zip(*episodes, strict=True), position.batch, None)  # after those before an interruption
        batches = Ahead((self._loaded(one), [len(batch.user_B) for batch in one]) for one in left)
        for loaded, users_M in batches:
            position.loss_sum += self._outer_step(loaded, users_M, batches.prepare)
            users = users_M[0]
            position.users_done += users
            position.batch += 1
            speed = (position.users_done - users_before) / (time.perf_counter() - started)
            step.advance(users, f"epoch {position.epoch + 1} · {speed:,.0f} users/s{position.best_note()}")
            if position.batch % self._checkpoint_batches == 0:
                position.seconds += time.perf_counter() - started
                started, users_before = time.perf_counter(), position.users_done
                self._unite()
                self._save()
        position.seconds += time.perf_counter() - started
        self._end_epoch()

    def _loaded(self, batches: Iterable[TaskBatch]) -> list[TensorBatch]:
        """A batch for each member, or the share of it that is this rank's."""
        ranks, end = Ranks() if self._by_members else self._ranks, int(self._tasks.offsets[-1])
        return [self._loader.load(batch, end, share_of(ranks, len(batch.user_B))) for batch in batches]

    def _outer_step(self, batches: list[TensorBatch], users: list[int], meanwhile: Callable[[], None]) -> float:
        """One step of the outer optimiser, a batch for each member; returns the sum of the meta-loss over users.

        `users` are those of whole batches, of which other ranks may have a share; `meanwhile` is done while they are
        waited for.
        """
        self._optimizer.zero_grad()
        members = [self._ensemble.members[k] for k in self._own]
        found = [self._differentiated(member, batch) for member, batch in zip(members, batches, strict=True)]
        values = np.array([loss.value.item() for loss in found])
        if self._shares_users:
            values, found = shared_gradients(self._ranks, members, found, batches, meanwhile)
        for member in members if self._outer.clip_norm else ():
            torch.nn.utils.clip_grad_norm_(member.parameters(), self._outer.clip_norm)
        self._optimizer.step()
        self._average.follow()
        for member, loss in zip(members, found, strict=True):
            if loss.memory is not None:
                member.rates.finish_step(loss.memory, self._optimizer.rate)
        return float(np.mean([value * count for value, count in zip(values, users, strict=True)]))

    def _differentiated(self, member: Learner, batch: TensorBatch) -> MetaLoss:
        """A member's meta-loss, with its gradients: one member after the other, in the memory of the one before."""
        try:
            loss = self._objective(member, batch)
        except NoSolutionError:  # the closed form's system has overflowed
            self._raise_diverged(float("nan"), batch)
        value = loss.value.item()
        if not np.isfinite(value):
            self._raise_diverged(value, batch)
        weighted = loss.value * weight_of(loss, batch) if self._shares_users else loss.value
        weighted.backward()  # type: ignore[no-untyped-call]
        return loss._replace(value=loss.value.detach())

    @property
    def _shares_users(self) -> bool:
        """Whether other ranks have users of the same batches."""
        return self._ranks.size > 1 and not self._by_members

    def _raise_diverged(self, value: float, batch: TensorBatch) -> NoReturn:
        user_B = batch.user_B.tolist()
        users = ", ".join(self._data.users().select("user").collect()["user"].gather(user_B).head(5))
        raise TrainingError(
            f"the loss is {value} in epoch {self._position.epoch + 1}, batch {self._position.batch + 1}"
            f" (users {users}, ...)",
            where=self._folder,
            remedy="lower outer_rate, inner_rate or rate_scale, or set clip_norm",
        )

    def _end_epoch(self) -> None:
        """Validate, keep the best weights, and save."""
        position = self._position
        metric = self._metric
        position.generators = _states(self._rngs)
        self._unite()
        with self._average.in_place():
            value = self._validate()
            is_best = value is None or position.best_value is None or value < position.best_value
            best = self._copy_of_weights() if is_best else self._best
        is_finite = all(bool(one.isfinite().all()) for one in best.values()) if value is None else np.isfinite(value)
        if not is_finite:
            what = "a weight is not finite" if value is None else f"validation {metric} is {value}"
            raise TrainingError(
                f"{what} after epoch {position.epoch + 1}",
                where=self._folder,
                remedy="lower outer_rate, inner_rate or rate_scale, or set clip_norm",
            )
        if is_best:
            position.best_value, position.best_epoch, self._best = value, position.epoch, best
        position.history.append(
            {
                "epoch": position.epoch + 1,
                "loss": position.loss_sum / max(position.users_done, 1),
                f"validation_{metric}": value,
                "seconds": round(position.seconds, 3),
                "users_per_second": round(position.users_done / max(position.seconds, 1e-9), 1),
            }
        )
        position.epoch, position.batch, position.users_done = position.epoch + 1, 0, 0
        position.loss_sum = position.seconds = 0.0
        self._save()
        if self._ranks.is_first:
            self._write_metrics()

    def _validate(self) -> float | None:
        """The mean of the metric over validation users, None if there are none, NaN if a user has no solution.

        Each rank has a share of them.
        """
        tasks, ranks = Tasks.of(self._data, "validation"), self._ranks
        first, end = (len(tasks) * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
        value = self._mean_over(tasks.part(first, end - first), self._ensemble)
        if ranks.size == 1 or not len(tasks):
            return value
        total = torch.tensor(0.0 if value is None else value * (end - first), dtype=torch.float64, device=self._device)
        return float(ranks.sum(total)) / len(tasks)

    def _mean_over(self, tasks: Tasks, ensemble: Ensemble) -> float | None:
        try:
            if self._metric == CHOICE_LOSS:
                return choice_loss(ensemble, self._loader, tasks)
            rows = evaluate_tasks(ensemble, self._data, tasks, self._loader)
        except NoSolutionError:
            return float("nan")
        return float(rows[self._metric].mean()) if len(rows) else None  # type: ignore[arg-type]

    def _finish(self, progress: Progress) -> None:
        """Write the results: the best weights, what else serving needs, and how training went."""
        position, ensemble = self._position, self._ensemble
        recipe = settings_in_use(self._settings.method, self._settings.shape(), self._settings.recipe)
        summary: dict[str, Any] = {
            "epochs": position.epoch,
            "best_epoch": position.best_epoch + 1,
            "best_validation": position.best_value,
            "seconds": sum(entry["seconds"] for entry in position.history),
        }
        if recipe != self._settings.recipe:
            title = f"merging {len(ensemble.members)} networks into one with vectors of {recipe.item_embedding}"
            with progress.step(title, 1) as step:
                judge = partial(self._mean_over, Tasks.of(self._data, "validation"))
                ensemble, value = merged(ensemble, recipe, self._settings, self._data, self._loader, judge)
                step.advance(1, "" if value is None else f"validation {value:.4f}")
            summary["merged_validation"] = value
        summary |= self._facts_of_rates()
        write_text(self._folder / "vocab.json", self._data.vocabulary.model_dump_json(indent=1) + "\n")
        write_catalogue(self._data, self._folder / "catalogue.parquet", self._settings.seed)
        reference_users = self._folder / "reference_users.parquet"
        write_reference_users(ensemble, self._data, reference_users, self._settings.seed)
        self._write_metrics()
        ended = {"summary": summary, "metrics": listed(self._folder / METRICS)}
        write_settings(self._folder, self._settings.model_copy(update=ended))
        values = {"identity": self._settings.identity(), "files": companions(self._folder)}
        checkpoint.save(self._folder / WEIGHTS, ensemble.state_dict(), values)
        shutil.rmtree(self._state_file.parent, ignore_errors=True)

    def _described(self) -> Training:
        """What loggers are told once."""
        settings, run = self._settings, self._folder.parent if self._part else self._folder
        facts = {"method": settings.method, "seed": settings.seed, "fingerprint": settings.fingerprint}
        name = "/".join(filter(None, (run.name, self._part)))
        return Training(name, {**facts, **settings.recipe.model_dump(mode="json")}, self._part)

    def _write_metrics(self) -> None:
        lines = (json.dumps(entry) for entry in self._position.history)
        write_text(self._folder / METRICS, "".join(f"{line}\n" for line in lines))

    @torch.no_grad()
    def _facts_of_rates(self) -> dict[str, Any]:
        """Facts about the first member's rate source, from some validation users."""
        tasks, member = Tasks.of(self._data, "validation"), self._ensemble.members[0]
        if not len(tasks):
            return member.rates.facts(torch.zeros(0, member.network.user.width))
        batch = self._loader.load(next(tasks.stored(256)))
        return member.rates.facts(member.network.embed_users(batch.users))

    def _copy_of_weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._ensemble.state_dict().items()}

    @property
    def _state_file(self) -> Path:
        return self._folder / "resume" / "state.safetensors"

    def _save(self) -> None:
        """Write the whole state to one file."""
        if not self._ranks.is_first:
            return
        tensors = self._state() | {f"best.{name}": tensor for name, tensor in self._best.items()}
        self._state_file.parent.mkdir(exist_ok=True)
        checkpoint.save(self._state_file, tensors, {"identity": self._settings.identity(), **asdict(self._position)})

    def _state(self) -> dict[str, Tensor]:
        """All tensors of the training, except the best weights."""
        tensors = {f"optimizer.{name}": tensor for name, tensor in self._optimizer.state().items()}
        tensors |= {f"now.{name}": tensor for name, tensor in self._ensemble.state_dict().items()}
        return tensors | {f"average.{name}": tensor for name, tensor in self._average.state().items()}

    def _unite(self) -> None:
        """All weights up to date, those of members on other ranks included."""
        self._optimizer.settle()
        if not self._by_members:
            return
        exchange_members(self._ranks, self._ensemble.members, self._optimizer, self._average)
        position, members = self._position, len(self._ensemble.members)
        own = {k: position.generators[k] for k in self._own}
        parts = self._ranks.gather_objects((own, position.loss_sum * len(own) / members))
        for generators, _ in parts:
            for k, state in generators.items():
                position.generators[k] = state
        position.loss_sum = sum(loss for _, loss in parts)

    def _restore(self) -> None:
        """Continue from what `_save` wrote."""
        tensors, values, _ = checkpoint.load(self._state_file)
        if values.pop("identity", None) != self._settings.identity():
            raise FormatError("belongs to another run", where=self._state_file, remedy="train again")
        parts: dict[str, dict[str, Tensor]] = {"now": {}, "best": {}, "average": {}, "optimizer": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor
        load_state(self._ensemble, parts["now"], self._state_file)
        self._best = parts["best"]
        self._average.restore(parts["average"])
        self._optimizer.restore(parts["optimizer"])
        try:
            self._position = Position(**values)
        except TypeError:
            raise FormatError("was written by another version", where=self._state_file, remedy="train again") from None


def _states(rngs: Iterable[np.random.Generator]) -> list[dict[str, Any]]:
    return [dict(rng.bit_generator.state) for rng in rngs]
