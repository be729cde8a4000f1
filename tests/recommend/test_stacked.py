"""Stacked members predict what they predict one by one: every method and target, in threads, in a predictor."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import paml
from paml.methods.learner import Ensemble
from paml.methods.registry import METHODS
from paml.recommend.requests import NewUser, Rating
from paml.recommend.stacked import MAX_USERS, MIN_MEMBERS, Stack

RunOf = Callable[[str, str], paml.Run]
STACKED = [method for method in METHODS if method != "at_paml"]
NEW_USERS = [
    NewUser({"gender": "F", "age": "25"}, [Rating("3", 1), Rating("11", 1)]),
    NewUser({}, []),
    NewUser({"gender": "M", "age": "unheard of"}, [Rating("20", 1)]),
]


def larger(run: paml.Run) -> paml.Run:
    """The run with its two members and two more."""
    torch.manual_seed(0)
    members, more = run.ensemble.members, paml.load(run.path).ensemble.members
    for member in more:
        for weights in member.parameters():
            weights.data *= 1 + 0.1 * torch.rand_like(weights)
    return paml.Run(run.path, run.settings, Ensemble([*members, *more]))


@pytest.mark.parametrize("target", ["rating", "click"])
@pytest.mark.parametrize("method", STACKED)
def test_stacked_members_have_the_outputs_of_the_members(target: str, method: str, run_of: RunOf) -> None:
    predictor = larger(run_of(target, method)).predictor
    assert Stack.suits(predictor.members)
    stack = Stack(predictor.members)
    batch, rows, context = predictor.batch(NEW_USERS), slice(5, 90), predictor.encoding.context([{}])
    stacked = stack.adapt(batch)
    with torch.no_grad():
        alone = [member.adapt(batch) for member in predictor.members]
        pairs = zip(predictor.members, alone, strict=True)
        expected = torch.stack([member.learner.outputs_of_all(one, rows, context) for member, one in pairs])
    torch.testing.assert_close(stack.outputs_of_all(stacked, rows, context), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected[0], expected[2])  # members do differ


@pytest.mark.parametrize("method", ["ridge", "reg_paml"])
def test_a_predictor_with_many_members_answers_one_user_as_it_answers_many(method: str, run_of: RunOf) -> None:
    predictor = larger(run_of("rating", method)).predictor
    many = NEW_USERS * MAX_USERS  # too many to be stacked
    expected = [user.scores() for user in predictor.adapt_many(many, score=True)]
    rates = [user.rate for user in predictor.adapt_many(many)]
    for new_user, scores, rate in zip(many, expected, rates, strict=True):
        user = predictor.adapt(new_user.profile, new_user.ratings)
        np.testing.assert_allclose(user.scores(), scores, atol=1e-5)
        np.testing.assert_allclose(
            user.predict(["3", "9"]), user.scores()[predictor.catalogue.rows(["3", "9"])], atol=1e-5
        )
        assert user.rate == pytest.approx(rate, abs=1e-6)
        assert len(user.reasons(["9"])[0]) == min(3, len(new_user.ratings))


def test_threads_share_a_stack(run: paml.Run) -> None:
    predictor = larger(run).predictor

    def scores(new_user: NewUser) -> np.ndarray:
        return predictor.adapt(new_user.profile, new_user.ratings).scores()

    expected = [scores(new_user) for new_user in NEW_USERS]
    with ThreadPoolExecutor(8) as pool:
        for found, right in zip(pool.map(scores, NEW_USERS * 20), expected * 20, strict=True):
            np.testing.assert_array_equal(found, right)


def test_few_members_large_ones_and_a_memory_are_not_stacked(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = run_of("rating", "ridge").predictor.members, larger(run_of("rating", "ridge")).predictor.members
    assert len(few) < MIN_MEMBERS <= len(many)
    assert not Stack.suits(few)
    assert Stack.suits(many)
    monkeypatch.setattr("paml.recommend.stacked.MAX_NUMBERS", many[0].items.vectors_ND.numel())
    assert not Stack.suits(many)
    assert not Stack.suits(larger(run_of("rating", "at_paml")).predictor.members)
