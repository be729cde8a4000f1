"""Large catalogues: one list of ten by an index and exact scoring of its candidates, next to scoring everything.

Item vectors are generated: singular values decay, well-known items have longer vectors and higher biases, and each of
the ensemble's networks knows the same vectors, turned its own way, with noise. Users are generated likewise. Both ways
end with squashed predictions and the ten best. Times are processor time with one thread, in one run; recall is that
of other users than those for whom the index was tuned.

`python -m benchmarks.catalogue ITEMS ...` measures these sizes; by default 20,000 to one million. Ten million items
need 6 GB of memory with one network, which is what is then used in place of three.
"""

import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paml.engine.heads import ValueHead
from paml.engine.joint import JointTable
from paml.recommend.candidates import RECALL_AT, CandidateIndex, Probe, recall
from paml.recommend.members import mean_prediction

SIZES = (20_000, 50_000, 100_000, 200_000, 1_000_000)
MEMBERS, WIDTH, NOISE = 3, 48, 0.02
FEW_MEMBERS, FROM_ITEMS = 1, 5_000_000  # from so many items on, so few networks
TUNED, MEASURED = 50, 100
LOWEST, HIGHEST, MEAN = 1.0, 5.0, 3.2
SATURATED = 1e-3  # predictions nearer to the highest rating hardly differ
TASTE, BIAS = 0.6, 0.25  # standard deviations
HEAD = ValueHead((LOWEST, HIGHEST))
CHUNK = 1 << 18


class World:
    """Generated items and users."""

    def __init__(self, items: int, members: int, rng: np.random.Generator) -> None:
        self._rng, self._members = rng, members
        self._spread_D = (np.arange(1, WIDTH + 1) ** -0.75).astype(np.float32)
        self._turns = [np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32) for _ in range(members)]
        rows_IME = torch.empty(items, members, WIDTH + 2)
        known_I = _known(rng.permutation(items))
        for start in range(0, items, CHUNK):
            rows_IME[start : start + CHUNK] = torch.from_numpy(self._rows(known_I[start : start + CHUNK]))
        self.table = JointTable(rows_IME)

    def _rows(self, known_I: np.ndarray) -> np.ndarray:
        """[1, vector, bias] for each network."""
        shape, rng = (len(known_I), WIDTH), self._rng
        vector_ID = rng.standard_normal(shape, dtype=np.float32) * self._spread_D * (0.3 + 0.7 * known_I[:, None])
        bias_I = BIAS * known_I + BIAS * rng.standard_normal(len(known_I), dtype=np.float32)
        rows_IME = np.ones((len(known_I), self._members, WIDTH + 2), dtype=np.float32)
        for m, turn_DD in enumerate(self._turns):
            rows_IME[:, m, 1:-1] = vector_ID @ turn_DD + NOISE * rng.standard_normal(shape, dtype=np.float32)
            rows_IME[:, m, -1] = bias_I + NOISE * rng.standard_normal(len(known_I), dtype=np.float32)
        return rows_IME

    def users(self, count: int) -> list[Tensor]:
        """Weights of users, (M, E) each."""
        rng, found = self._rng, []
        for _ in range(count):
            taste_D = TASTE * rng.standard_normal(WIDTH).astype(np.float32) * self._spread_D
            weights_ME = np.ones((self._members, WIDTH + 2), dtype=np.float32)
            weights_ME[:, 0] = MEAN
            for m, turn_DD in enumerate(self._turns):
                weights_ME[m, 1:-1] = taste_D @ turn_DD + NOISE * rng.standard_normal(WIDTH)
            found.append(torch.from_numpy(weights_ME))
        return found

    def exact(self, weights_ME: Tensor) -> np.ndarray:
        """The ten best scores of all items."""
        out_M1I = self.table.times(weights_ME.unsqueeze(-1))
        best: np.ndarray = mean_prediction(HEAD, out_M1I.unsqueeze(-1))[0].topk(RECALL_AT).values.numpy()
        return best

    def score(self, weights_ME: Tensor, row_R: Tensor) -> Tensor:
        """Predictions for some items."""
        out_M1R = weights_ME.unsqueeze(1) @ self.table.rows(row_R).permute(1, 2, 0)
        return mean_prediction(HEAD, out_M1R.unsqueeze(-1))[0]


def _known(place_I: np.ndarray) -> np.ndarray:
    """How well known items are, from 0 to 1: the logarithm of a long-tailed popularity."""
    seen_I = np.log1p(((len(place_I) + 10) / (place_I + 10)) ** 0.8)
    return (seen_I / seen_I.max()).astype(np.float32)


def timed(call: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """Seconds of processor time of a call, and its result."""
    started = time.process_time()
    found = call()
    return time.process_time() - started, found


@torch.inference_mode()
def measure(items: int) -> str:
    """Build an index for so many items, tune it, and compare lists."""
    members = FEW_MEMBERS if items >= FROM_ITEMS else MEMBERS
    world = World(items, members, np.random.default_rng(items))
    started = time.process_time()
    index = CandidateIndex(world.table)
    built = time.process_time() - started

    def probe(one: Tensor) -> Probe:
        return Probe(one.flatten(), lambda: float(world.exact(one)[-1]), lambda row_R: world.score(one, row_R))

    tuned = index.measure([probe(one) for one in world.users(TUNED)])

    def found(one: Tensor) -> np.ndarray:
        row_R = index.find(one.flatten(), tuned.candidates, tuned.breadth)
        best: np.ndarray = world.score(one, torch.from_numpy(row_R)).topk(RECALL_AT).values.numpy()
        return best

    exact, indexed, shares, beyond = [], [], [], 0
    for one in world.users(MEASURED):
        seconds, right = timed(lambda one=one: world.exact(one))
        exact.append(seconds)
        seconds, best = timed(lambda one=one: found(one))
        indexed.append(seconds)
        shares.append(recall(best, float(right[-1])))
        beyond += float(right[-1]) > HIGHEST - SATURATED
    slow, fast = 1e3 * np.median(exact), 1e3 * np.median(indexed)
    looked = f"with {tuned.candidates} of {tuned.breadth} times as many"
    return (
        f"{items:>10,} items, {members} networks; exact {slow:7.2f} ms, index {fast:6.2f} ms ({fast / slow:.2f}), "
        f"recall at {RECALL_AT} {np.mean(shares):.3f} {looked}, {beyond} of {MEASURED} lists at the end of the scale; "
        f"built in {built:.1f} s, {index.nbytes / 1e6:.0f} MB beside {8 * world.table.rows_IME.numel() / 1e6:,.0f} MB"
    )


def main() -> None:
    """Print a line per size."""
    import faiss

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    sizes = [int(text) for text in sys.argv[1:] if text.isdecimal()] or SIZES
    for items in sizes:
        print(measure(items), flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
