"""What a run's lists may be ordered by, from one pass over the users: the parts of a preference are orders, too.

Legend: B users, I items.
"""

from torch import Tensor

from paml.data.dataset import Dataset
from paml.episodes.batches import Loader, SupportBatch
from paml.evaluation.ranking import Orders
from paml.evaluation.scenarios import SHOTS
from paml.evaluation.scoring import scores_of_all
from paml.training.run import Run

MAX_PRODUCTS = 1 << 43
"""Multiplications in the decision layers that ranking all users may take, some minutes' work; with more, lists are left
out: hidden layers, as the paper has them, times a large catalogue would take days."""


def can_be_ranked(run: Run, users: int, items: int) -> bool:
    """Whether ranking all items for so many users, at every number of known ratings, is affordable."""
    parts = [part for part in (run.rater, run.chooser) if part is not None]
    weights = sum(rows.numel() for part in parts for member in part.members for rows in member.network.decision.rows)
    return bool(weights * users * items * (len(SHOTS) + 1) <= MAX_PRODUCTS)


def orders_of(run: Run, data: Dataset) -> Orders:
    """The usual order first: `preference`, `choice` and `rating`, as far as the run knows them (see `Run.rank`)."""
    preference = run.preference
    if preference is None:
        return Orders.single(run.rank(data), "rating")
    loader = Loader(data, run.ensemble.inputs, next(run.ensemble.parameters()).device)
    outputs = run.outputs(loader)

    def scores(batch: SupportBatch) -> dict[str, Tensor]:
        choice_BI, rating_BI = outputs(batch)
        found = {"preference": preference.score(batch, choice_BI, rating_BI), "choice": choice_BI}
        return found if rating_BI is None else {**found, "rating": rating_BI}

    rates = () if run.rater is None else ("rating",)
    return Orders(("preference", "choice", *rates), scores_of_all(loader, scores))
