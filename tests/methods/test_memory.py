"""AT-PAML's memory against a brute-force model, and how its nodes learn."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from paml.errors import SettingsError
from paml.methods.memory import EMPTY, MemoryRate, MemorySettings, UserMemory
from paml.methods.neighbours import INDEXES, make_index, recall
from paml.methods.rates import PersonalRate

WIDTH = 3


class BruteForce:
    """One node per user in a dict, least recently used first; of equals the one in the lower slot."""

    def __init__(self, size: int) -> None:
        self.size, self.clock = size, 0
        self.nodes: dict[int, dict[str, object]] = {}
        self.free = list(range(size))

    def store(self, users: list[int], keys: np.ndarray, values: np.ndarray) -> None:
        users, keys, values = users[-self.size :], keys[-self.size :], values[-self.size :]
        self.clock += 1
        slots = {}
        for user in users:
            if user in self.nodes:
                slots[user] = self.nodes[user]["slot"]
        for user in users:
            if user in slots:
                continue
            if self.free:
                slots[user] = self.free.pop(0)
            else:
                taken = set(slots.values())
                old = [name for name, node in self.nodes.items() if node["slot"] not in taken]
                victim = min(old, key=lambda name: (self.nodes[name]["used"], self.nodes[name]["slot"]))
                slots[user] = self.nodes.pop(victim)["slot"]
        for user, key, value in zip(users, keys, values, strict=True):
            self.nodes[user] = {"slot": slots[user], "key": key, "value": value, "used": self.clock}

    def touch(self, users: list[int]) -> None:
        for user in users:
            self.nodes[user]["used"] = self.clock


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sets(st.integers(0, 12), min_size=1, max_size=8), st.integers(0, 5)), max_size=12),
)
def test_store_and_eviction_agree_with_brute_force(size: int, rounds: list[tuple[set[int], int]]) -> None:
    memory, model = UserMemory(size, WIDTH), BruteForce(size)
    rng = np.random.default_rng(0)
    for batch, reads in rounds:
        users = list(batch)
        keys, values = (
            rng.normal(size=(len(users), WIDTH)).astype(np.float32),
            rng.random(len(users)).astype(np.float32),
        )
        memory.clock += 1
        memory.store(torch.tensor(users), torch.from_numpy(keys), torch.from_numpy(values))
        model.store(users, keys, values)
        read = sorted(model.nodes)[:reads]
        memory.touch(memory.slots_of(torch.tensor(read, dtype=torch.int64)))
        model.touch(read)
        stored = {int(user): slot for slot, user in enumerate(memory.user_M[: int(memory.count)])}
        assert stored == {user: node["slot"] for user, node in model.nodes.items()}
        for user, node in model.nodes.items():
            assert np.array_equal(memory.keys_MH[stored[user]], node["key"])
            assert memory.values_M[stored[user]] == node["value"]


def test_nodes_that_were_read_outlive_others() -> None:
    settings = MemorySettings(memory_size=2, neighbours=1, warmup_epochs=0)
    rate = MemoryRate(PersonalRate(WIDTH, 0.1, torch.Generator().manual_seed(0)), WIDTH, settings)
    rate.begin_epoch(0)
    near, far = torch.zeros(1, WIDTH), torch.full((1, WIDTH), 9.0)
    for user, h in ((0, near), (1, far), (2, near)):  # the third user reads the first one's node
        train(rate, h, [user])
    assert sorted(rate.memory.user_M.tolist()) == [0, 2]


def test_slots_of_unknown_users_are_empty() -> None:
    memory = UserMemory(4, WIDTH)
    assert memory.slots_of(torch.tensor([7])).tolist() == [EMPTY]
    whole = {name: tensor.dtype for name, tensor in memory.state_dict().items() if not tensor.is_floating_point()}
    assert whole == dict.fromkeys(["user_M", "used_M", "clock", "count"], torch.int64)
    memory.store(torch.tensor([5, 9]), torch.zeros(2, WIDTH), torch.zeros(2))
    assert memory.slots_of(torch.tensor([9, 7, 5])).tolist() == [1, EMPTY, 0]


def in_training(rate: MemoryRate, h: torch.Tensor, users: Iterable[int]) -> torch.Tensor:
    return rate.in_training(h, np.array([*users])).rate.per_user(len(h))


def train(
    rate: MemoryRate,
    h: torch.Tensor,
    users: Iterable[int],
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
    outer_rate: float = 0.1,
) -> torch.Tensor:
    """A whole step of the memory: rates, their gradients if there is a loss, and nodes stored."""
    found = rate.in_training(h, np.array([*users]))
    alpha = found.rate.per_user(len(h))
    if loss is not None:
        loss(alpha).backward()
    assert found.memory is not None
    rate.finish_step(found.memory, outer_rate)
    return alpha


def rate_with_nodes(count: int = 6, rate_scale: float = 0.1, **changes: object) -> tuple[MemoryRate, torch.Tensor]:
    settings = MemorySettings(memory_size=10, neighbours=3, neighbours_inference=2, kernel_delta=0.5, **changes)
    rate = MemoryRate(PersonalRate(WIDTH, rate_scale, torch.Generator().manual_seed(0)), WIDTH, settings)
    keys = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))
    if count:
        rate.memory.store(torch.arange(count), keys, torch.linspace(0.1, 0.6, count))
    rate.begin_epoch(settings.warmup_epochs)
    return rate, keys


def by_hand(rate: MemoryRate, h: torch.Tensor, k: int, own: int | None) -> float:
    nodes = [slot for slot in range(int(rate.memory.count)) if slot != own]
    distance = {slot: float(((h - rate.memory.keys_MH[slot]) ** 2).sum()) for slot in nodes}
    nearest = sorted(nodes, key=lambda slot: distance[slot])[:k]
    weights = [np.exp(-0.5 * distance[slot]) for slot in nearest]
    values = [float(rate.memory.values_M[slot]) for slot in nearest]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / (sum(weights) + 1e-5)


@pytest.mark.parametrize("index", INDEXES)
def test_rate_is_the_users_own_plus_a_kernel_mean_of_the_nearest_others(index: str) -> None:
    rate, keys = rate_with_nodes(memory_index=index)
    h = keys[:4] + 0.01
    own = rate.own.alpha(h)
    training = in_training(rate, h, range(4))
    expected = [by_hand(rate, h[b], 3, own=b) for b in range(4)]
    assert (training - own).tolist() == pytest.approx(expected, rel=1e-4)
    inference = rate(h).per_user(len(h))
    assert (inference - own).tolist() == pytest.approx([by_hand(rate, h[b], 2, None) for b in range(4)], rel=1e-4)


def test_fewer_nodes_than_neighbours_and_none_at_all() -> None:
    rate, keys = rate_with_nodes(count=2)
    h = keys[:1]
    assert (in_training(rate, h, [0]) - rate.own.alpha(h)).item() == pytest.approx(
        by_hand(rate, h[0], 3, own=0), rel=1e-4
    )
    empty, _ = rate_with_nodes(count=0)
    assert torch.equal(in_training(empty, h, [0]), empty.own.alpha(h))
    assert torch.equal(empty(h).per_user(1), empty.own.alpha(h))


def test_a_nodes_rate_stays_in_its_range() -> None:
    """A step that would make a rate negative, or larger than any user's own rate can be, ends at the bound."""
    rate, keys = rate_with_nodes(rate_scale=0.3)
    for sign in (-1e6, 1e6):
        train(rate, keys[:2] + 0.1, [50, 51], lambda alpha: (sign * alpha).sum())  # noqa: B023 - called at once
        assert rate.memory.values_M[:6].min() >= 0
        assert rate.memory.values_M[:6].max() <= 0.3
    literal, _ = rate_with_nodes(memory_stores="alpha")
    train(literal, keys[:2] + 0.1, [50, 51], lambda alpha: (-1e6 * alpha).sum())
    assert literal.memory.values_M[:6].max() > 1


def test_nodes_learn_by_plain_gradient_descent() -> None:
    rate, _ = rate_with_nodes(rate_scale=1.0)
    h = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(4))
    before_keys, before_values = rate.memory.keys_MH.clone(), rate.memory.values_M.clone()
    live_keys, live_values = before_keys.clone().requires_grad_(), before_values.clone().requires_grad_()
    distance = ((h.unsqueeze(1) - live_keys[:6].unsqueeze(0)) ** 2).sum(dim=2)
    nearest = distance.topk(3, dim=1, largest=False).indices
    s = (-0.5 * distance.gather(1, nearest)).exp()
    expected_rate = rate.own.alpha(h).detach() + (s * live_values[nearest]).sum(dim=1) / (s.sum(dim=1) + 1e-5)
    (expected_rate**2).sum().backward()
    train(rate, h, [50, 51], lambda alpha: (alpha**2).sum())
    assert torch.allclose(rate.memory.keys_MH[:6], (before_keys - 0.1 * live_keys.grad)[:6], atol=1e-6)
    assert torch.allclose(rate.memory.values_M[:6], (before_values - 0.1 * live_values.grad)[:6], atol=1e-6)
    assert rate.memory.slots_of(torch.tensor([50, 51])).tolist() == [6, 7]
    assert torch.equal(rate.memory.keys_MH[6:8], h)


@pytest.mark.parametrize("stores", ["own", "alpha"])
def test_what_a_node_stores(stores: str) -> None:
    rate, keys = rate_with_nodes(memory_stores=stores)
    h = keys[:1] + 0.1
    alpha = train(rate, h, [77]).detach()
    stored = rate.memory.values_M[rate.memory.slots_of(torch.tensor([77]))]
    assert torch.equal(stored, alpha if stores == "alpha" else rate.own.alpha(h).detach())


def test_warm_up_uses_a_fixed_rate_and_fills_the_memory() -> None:
    rate, keys = rate_with_nodes(count=0)
    rate.begin_epoch(0)
    assert train(rate, keys.new_ones(2, WIDTH), [3, 4]).tolist() == pytest.approx([5e-4, 5e-4])
    assert int(rate.memory.count) == 2


def test_inference_only_reads_so_the_order_of_users_does_not_matter() -> None:
    rate, _ = rate_with_nodes()
    before = {name: tensor.clone() for name, tensor in rate.state_dict().items()}
    h = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(2))
    together = rate(h).per_user(8)
    alone = torch.cat([rate(h[b : b + 1]).per_user(1) for b in reversed(range(8))]).flip(0)
    assert torch.allclose(together, alone, rtol=1e-6)
    assert all(torch.equal(before[name], tensor) for name, tensor in rate.state_dict().items())


@pytest.mark.parametrize("index", INDEXES)
def test_loading_a_state_rebuilds_the_index(index: str) -> None:
    rate, _ = rate_with_nodes(memory_index=index)
    other, _ = rate_with_nodes(memory_index=index)
    h = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(3))
    rate(h)
    other.memory.keys_MH.copy_(other.memory.keys_MH.flip(0).roll(6, 0))
    expected = other(h).per_user(4)
    rate.load_state_dict(other.state_dict())
    assert torch.equal(rate(h).per_user(4), expected)


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_is_rebuilt_where_training_may_resume(index: str) -> None:
    """Also if there is no warm-up, and the memory is empty in the first step."""

    def step(rate: MemoryRate, k: int) -> None:
        h = torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(k))
        train(rate, h, range(30 * k % 90, 30 * k % 90 + 30), lambda alpha: ((alpha - 0.05) ** 2).sum(), outer_rate=5.0)

    def empty() -> MemoryRate:
        settings = MemorySettings(memory_size=100, neighbours=3, warmup_epochs=0, memory_index=index, index_every=5)
        return MemoryRate(PersonalRate(WIDTH, 0.1, torch.Generator().manual_seed(0)), WIDTH, settings)

    whole, resumed = empty(), empty()
    whole.begin_epoch(0)
    for k in range(14):
        if k == 10:
            resumed.load_state_dict(whole.state_dict())
            resumed.begin_epoch(0)
        for rate in (whole, resumed) if k >= 10 else (whole,):
            step(rate, k)
    assert torch.equal(whole.memory.keys_MH, resumed.memory.keys_MH)
    assert torch.equal(whole.memory.values_M, resumed.memory.values_M)


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_find_the_nearest(name: str) -> None:
    rng = torch.Generator().manual_seed(0)
    keys, queries = torch.randn(500, 8, generator=rng), torch.randn(20, 8, generator=rng)
    index = make_index(name)
    index.build(keys)
    found = recall(index, keys, queries, 5)
    assert found == 1.0 if name == "exact" else found > 0.8
    index.build(keys[:3])
    few = index.search(queries, 5)
    assert few.shape == (20, 5)
    assert sorted(few[0].tolist()) == [-1, -1, 0, 1, 2]


class HalfIndex:
    """Finds the nearest key of every query and otherwise nothing."""

    def build(self, keys_MH: torch.Tensor) -> None:
        self.keys_MH = keys_MH

    def search(self, queries_BH: torch.Tensor, k: int) -> torch.Tensor:
        nearest_B = torch.cdist(queries_BH, self.keys_MH).argmin(dim=1)
        return torch.nn.functional.pad(nearest_B.unsqueeze(1), (0, k - 1), value=-1)


def test_recall_is_the_share_of_true_neighbours_found() -> None:
    keys, queries = torch.tensor([[0.0], [1.0], [5.0], [9.0]]), torch.tensor([[0.2], [4.0], [9.5]])
    index = HalfIndex()
    index.build(keys)
    assert recall(index, keys, queries, 1) == 1.0
    assert recall(index, keys, queries, 2) == 0.5
    assert recall(index, keys, queries, 4) == 0.25
    assert recall(index, keys, queries, 8) == 0.25  # of the four that there are
    index.build(keys.flip(0))  # positions that belong to other keys
    assert recall(index, keys, queries, 1) == 0.0
    assert recall(index, keys, queries[:0], 1) == 0.0
    exact = make_index("exact")
    exact.build(keys)
    farthest_first = SimpleNamespace(search=lambda queries_BH, k: exact.search(queries_BH, k).flip(1))
    assert recall(farthest_first, keys, queries, 2) == 1.0  # the order does not matter
    index.build(keys[:1])
    assert recall(index, keys[:1], queries, 1) == recall(index, keys[:1], queries[:1], 1) == 1.0


@pytest.mark.parametrize("index", INDEXES)
def test_facts_of_a_memory(index: str) -> None:
    rate, keys = rate_with_nodes(memory_index=index)
    assert rate.facts(keys) == {"memory_nodes": 6, "memory_recall": 1.0}
    assert rate.facts(keys[:0]) == {"memory_nodes": 6, "memory_recall": None}
    empty, _ = rate_with_nodes(count=0)
    assert empty.facts(keys) == {"memory_nodes": 0, "memory_recall": None}
    train(rate, keys + 3, range(20, 26))  # evicts nodes and moves on: the index must follow
    assert rate.facts(keys + 3) == {"memory_nodes": 10, "memory_recall": 1.0}


def test_the_tree_ignores_queries_that_are_not_numbers() -> None:
    """A diverged embedding must not end a training with an error of the tree."""
    tree = make_index("kdtree")
    tree.build(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    found = tree.search(torch.tensor([[float("nan"), 0.1], [0.9, 0.9]]), 1)
    assert found.tolist() == [[0], [1]]
    assert found.dtype == torch.int64


def test_unknown_indexes_are_refused() -> None:
    with pytest.raises(SettingsError, match="unknown memory_index 'kd-tree'; did you mean 'kdtree'"):
        make_index("kd-tree")


class CountingIndex:
    """The exact search, with a record of how many keys it was built from each time."""

    def __init__(self) -> None:
        self.built: list[int] = []
        self._exact = make_index("exact")

    def build(self, keys_MH: torch.Tensor) -> None:
        self.built.append(len(keys_MH))
        self._exact.build(keys_MH.clone())

    def search(self, queries_BH: torch.Tensor, k: int) -> torch.Tensor:
        return self._exact.search(queries_BH, k)


@pytest.mark.parametrize(
    ("index", "expected"),
    [("exact", [1, 2, 3, 4, 5, 6, 7, 8]), ("kdtree", [1, 4, 7, 8])],
)
def test_an_index_is_rebuilt_after_some_batches_and_in_every_epoch(
    index: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`index_every` = 3 batches; the exact search takes the keys as they are. The first epoch only fills the memory."""
    counting = CountingIndex()
    monkeypatch.setattr("paml.methods.memory.make_index", lambda _: counting)
    rate, _ = rate_with_nodes(count=0, memory_index=index, index_every=3)
    h = torch.randn(10, WIDTH, generator=torch.Generator().manual_seed(5))
    for epoch, users in ((0, [0]), (1, range(1, 8)), (2, [8])):
        rate.begin_epoch(epoch)
        for user in users:
            train(rate, h[user : user + 1], [user])
    assert counting.built == expected
    rate(h)
    rate(h)
    assert counting.built == [*expected, 9]  # in use it is never stale, and not rebuilt for nothing


def test_a_single_node_is_found() -> None:
    rate, keys = rate_with_nodes(count=1)
    assert (rate(keys).per_user(1) - rate.own.alpha(keys)).item() == pytest.approx(0.1, rel=1e-4)
    before = rate.memory.values_M.clone()
    with torch.no_grad():  # nothing was read for gradients, and the step can be finished all the same
        train(rate, keys, [77])
    assert int(rate.memory.count) == 2
    assert rate.memory.values_M[0] == before[0]


def test_many_neighbours_are_the_nearest_ones() -> None:
    settings = MemorySettings(memory_size=60, neighbours=30, neighbours_inference=30, kernel_delta=0.5)
    rate = MemoryRate(PersonalRate(WIDTH, 0.1, torch.Generator().manual_seed(0)), WIDTH, settings)
    keys = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1))
    rate.memory.store(torch.arange(40), keys, torch.linspace(0.1, 0.6, 40))
    h = keys[:4] + 0.01
    own = rate.own.alpha(h)  # an epoch need not have begun
    for users in (np.arange(4), np.arange(4, dtype=np.int32), np.arange(50, 54)):
        found = rate.in_training(h, users).rate.per_user(4) - own
        expected = [by_hand(rate, h[b], 30, own=int(users[b])) for b in range(4)]
        assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_of_equally_old_nodes_the_lower_slots_are_replaced() -> None:
    memory = UserMemory(100, WIDTH)
    memory.store(torch.arange(100), torch.zeros(100, WIDTH), torch.zeros(100))
    memory.clock += 1
    slots = memory.store(torch.arange(200, 240), torch.ones(40, WIDTH), torch.ones(40))
    assert slots.tolist() == [*range(40)]


@pytest.mark.parametrize("name", INDEXES)
def test_one_neighbour_too_few_is_marked(name: str) -> None:
    index = make_index(name)
    index.build(torch.tensor([[0.0], [1.0], [3.0]]))
    assert index.search(torch.tensor([[0.9]]), 4).tolist() == [[1, 0, 2, -1]]
    assert index.search(torch.tensor([[0.9]]), 3).tolist() == [[1, 0, 2]]


def test_training_users_as_new_ones_do_not_read_their_own_nodes() -> None:
    """As in training, where users are new to their own nodes, too."""
    rng = torch.Generator().manual_seed(0)
    settings = MemorySettings(memory_size=8, neighbours=3, neighbours_inference=3, kernel_delta=0.1, warmup_epochs=0)
    source = MemoryRate(PersonalRate(WIDTH, 0.5, rng), WIDTH, settings)
    users, h_BH = np.arange(5), torch.randn(5, WIDTH, generator=rng)
    source.begin_epoch(1)
    source.finish_step(source.in_training(h_BH, users).memory, 0.0)
    source.begin_epoch(2)
    expected_B = source.in_training(h_BH, users).rate.per_user(5)
    assert torch.equal(source.of_training_users(h_BH, users).per_user(5), expected_B)
    assert not torch.allclose(source(h_BH).per_user(5), expected_B)
