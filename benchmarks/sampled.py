"""What sampled candidates cost: the choice part trained with all items as candidates, and with few of them.

    python -m benchmarks.sampled DATA [epochs=10]         DATA is a prepared data set, such as MovieLens-1M

Sampling is for catalogues of more than `candidates.MAX_EXACT` items. Here it is switched on for a smaller one, in which
the exact softmax can be trained, too. The mean of nDCG@10 and recall@20 of validation users, by choice alone, and the
users that a second of training takes, against the exact one. Two trainings of each, with different seeds: their
difference is the noise.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import paml
from paml.episodes import candidates
from paml.episodes.tasks import Tasks
from paml.evaluation.ranking import quality
from paml.experiments.cells import _history as history
from paml.settings import parse_assignments

DRAWS = (None, 1024, 256, 64)
"""Items drawn for a batch, beside those of its own rows; None for the exact softmax."""
SEEDS = 2


def main() -> None:
    """Train with each number of draws, and print a line for each."""
    (path,) = [Path(text) for text in sys.argv[1:] if "=" not in text]
    settings = parse_assignments(text for text in sys.argv[1:] if "=" in text)
    torch.set_num_threads(1)
    data = paml.open_data(path)
    print(f"{data.manifest.items:,} items, MeLU with head=choice")
    print("| items drawn per batch | lists, each seed | of the exact one | users per second, of the exact one |")
    print("|---|---|---:|---:|", flush=True)
    exact: tuple[float, float] | None = None
    for draws in DRAWS:
        found = np.array([trained(data, draws, seed, settings) for seed in range(SEEDS)])
        gain, speed = found.mean(axis=0)
        exact = exact or (gain, speed)
        each = ", ".join(f"{one:.4f}" for one in found[:, 0])
        print(f"| {draws or 'all'} | {each} | {gain / exact[0]:.3f} | {speed / exact[1]:.2f} |", flush=True)


def trained(data: paml.Dataset, draws: int | None, seed: int, settings: dict[str, object]) -> tuple[float, float]:
    """Quality of lists of validation users, and users per second in training."""
    candidates.MAX_EXACT = data.manifest.items if draws is None else 0
    sampled = {} if draws is None else {"sampled_items": draws}
    with TemporaryDirectory() as folder:
        all_settings = {"epochs": 10, **settings, "head": "choice", **sampled}
        run = paml.train(data, "melu", seed=seed, out=Path(folder) / "run", settings=all_settings)
        speed = float(np.median(history(run.path)["users_per_second"].to_numpy()))
        return quality(data, Tasks.of(data, "validation"), run.rank(data)), speed


if __name__ == "__main__":
    main()
