"""Metrics as pure functions: one value per user, never averaged here, because statistics need rows.

Three kinds: `Metric` judges predictions for a user's query rows, `ListMetric` the list of all items that the user would
be shown (`ranking.py`), `ExposureMetric` the lists of all users together. Rows of a user lie side by side; `count_U`
says how many each user has. A user for whom a metric is undefined gets NaN, which is counted and not hidden.
Legend: N rows, U users.

`METRICS` is the one place that names them: scoring, summaries, comparisons, tables and figures follow from it, and
others' metrics (`METRIC_REGISTRY`) come after them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from paml.data.schema import CLICK_WEIGHTS, Target
from paml.evaluation import ranking
from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.ranking import Lists
from paml.registry import Registry, of_type

About = Literal["rows", "list", "contents"]
"""What a metric is about: predictions for query rows, how good a list is, or what lists hold (shown, not judged)."""


@dataclass(frozen=True)
class Measure:
    """What all metrics have: how they are named and shown."""

    name: str
    """The column of rows, and the key of results."""
    label: str
    """For tables."""
    better: Literal["lower", "higher"]
    digits: int
    """Decimal places in tables."""
    targets: frozenset[str]
    """Kinds of target (rating, click, choice) that it measures."""
    meaning: str = field(default="", kw_only=True)
    """A sentence for the glossary of reports, where these do not explain it already."""


@dataclass(frozen=True)
class Metric(Measure):
    """A metric of predictions for query rows: how it is computed for each user."""

    compute: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    """target_N, prediction_N, count_U -> one value per user."""
    chance: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """target_N, count_U -> what each user's value would be by chance; a column of its own, `NAME_chance`."""
    pooled: str | None = None
    """Label of the same metric over the rows of all users together, where that is shown, too."""
    graded: bool = field(default=False, kw_only=True)
    """Whether it is computed from grades of the targets."""

    def over_all_rows(self, target_N: np.ndarray, prediction_N: np.ndarray) -> float:
        """The metric as if all rows were one user's: for a ranking, rows of different users are also compared."""
        return float(self.compute(target_N, prediction_N, np.array([len(target_N)]))[0])

    @property
    def about(self) -> About:
        """The rows."""
        return "rows"


@dataclass(frozen=True)
class ListMetric(Measure):
    """A metric of the list that each user would be shown, out of all items."""

    compute: Callable[[Lists, ItemFacts], np.ndarray]
    """lists of U users, facts about the items -> one value per user."""
    about: About = "list"


@dataclass(frozen=True)
class ExposureMetric(Measure):
    """What the lists of all users together hold; one value, and none per user."""

    compute: Callable[[Lists, ItemFacts], float]
    about: About = "contents"


def per_user_mean(value_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """Mean of each user's values; every user needs at least one."""
    mean_U: np.ndarray = _per_user_sum(value_N, count_U) / count_U
    return mean_U


def squared_error(target_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """Each user's mean squared error (paper, Sec. D.6); the data set's MSE is the mean of these over users."""
    return per_user_mean((np.asarray(target_N, dtype=np.float64) - prediction_N) ** 2, count_U)


def absolute_error(target_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """Each user's mean absolute error."""
    return per_user_mean(np.abs(np.asarray(target_N, dtype=np.float64) - prediction_N), count_U)


MAX_GRADE = 20.0
"""2^r - 1 of higher ones is all that counts beside that of any other."""


def grades(target: Target, target_N: np.ndarray) -> np.ndarray:
    """Targets as nDCG's gain 2^r - 1 takes them: themselves on scales from 0 or above up to 20, as nearly all are.

    Scales that begin below 0, where gains would be negative, are moved to 0; wide ones are mapped to 0 to 5.
    """
    lowest = min(target.low, 0.0)
    if target.high - lowest > MAX_GRADE:
        mapped_N: np.ndarray = 5.0 * (np.asarray(target_N, dtype=np.float64) - target.low) / (target.high - target.low)
        return mapped_N
    return target_N - lowest if lowest else target_N


def ndcg(target_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """nDCG@k with gain 2^r - 1 and discount log2(1 + rank); equal predictions are ordered at random (fixed seed).

    Undefined (NaN) for users whose gains are all 0.
    """
    gain_N = 2.0 ** np.asarray(target_N, dtype=np.float64) - 1.0
    dcg_U = _dcg(gain_N, prediction_N, count_U, k, np.random.default_rng(seed))
    return _divide(dcg_U, _dcg(gain_N, gain_N, count_U, k, np.random.default_rng(seed)))


def ndcg_by_chance(target_N: np.ndarray, count_U: np.ndarray, k: int) -> np.ndarray:
    """The expected nDCG@k of a random order: mean gain times the sum of the discounts, over the ideal."""
    gain_N = 2.0 ** np.asarray(target_N, dtype=np.float64) - 1.0
    ideal_U = _dcg(gain_N, gain_N, count_U, k, np.random.default_rng(0))
    discount_K = np.concatenate([[0.0], np.cumsum(1 / np.log2(1 + np.arange(1, k + 1)))])
    return _divide(per_user_mean(gain_N, count_U) * discount_K[np.minimum(count_U, k)], ideal_U)


def auc(label_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """Each user's area under the ROC curve (ties count half); undefined (NaN) without both labels."""
    user_N = np.repeat(np.arange(len(count_U)), count_U)
    order = np.lexsort((prediction_N, user_N))
    user, prediction = user_N[order], np.asarray(prediction_N)[order]
    first = np.concatenate([[True], (np.diff(user) != 0) | (np.diff(prediction) != 0)]) if len(order) else np.array([])
    run = np.cumsum(first).astype(np.int64) - 1
    begin = np.flatnonzero(first)
    end = np.concatenate([begin[1:], [len(order)]])
    start_U = np.cumsum(count_U) - count_U
    rank = ((begin + end + 1) / 2)[run] - start_U[user]  # mean rank of equal predictions, from 1
    positive = np.asarray(label_N)[order] > 0
    rank_sum_U = np.bincount(user, weights=rank * positive, minlength=len(count_U))
    positive_U = np.bincount(user, weights=positive, minlength=len(count_U))
    return _divide(rank_sum_U - positive_U * (positive_U + 1) / 2, positive_U * (count_U - positive_U))


def weighted_entropy(label_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """NEL: mean of -w log q(label), w = 0.9 clicked and 0.1 not clicked; lower is better (Sec. D.6).

    q is what the weighted loss asks for where a click has the predicted chance p (`reweighted`): for a model trained
    with this loss, its own softmax.
    """
    q_N = np.clip(reweighted(np.asarray(prediction_N, dtype=np.float64)), 1e-12, 1 - 1e-12)
    w0, w1 = CLICK_WEIGHTS
    clicked_N = np.asarray(label_N) > 0
    return per_user_mean(np.where(clicked_N, -w1 * np.log(q_N), -w0 * np.log1p(-q_N)), count_U)


def reweighted(p_N: np.ndarray) -> np.ndarray:
    """The prediction that minimises the weighted entropy where a click has probability p.

    -w1 p log(q) - w0 (1 - p) log(1 - q) is smallest at q = w1 p / (w1 p + w0 (1 - p)). Without this step, even somebody
    who knew the true probabilities would lose to a predictor that was fitted with the weights.
    """
    w0, w1 = CLICK_WEIGHTS
    q_N: np.ndarray = w1 * p_N / (w1 * p_N + w0 * (1 - p_N))
    return q_N


def _dcg(gain_N: np.ndarray, score_N: np.ndarray, count_U: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """sum over the k highest scores of gain / log2(1 + rank)."""
    user_N = np.repeat(np.arange(len(count_U)), count_U)
    order = np.lexsort((rng.random(len(user_N)), -np.asarray(score_N, dtype=np.float64), user_N))
    rank_N = np.arange(1, len(user_N) + 1) - np.repeat(np.cumsum(count_U) - count_U, count_U)
    return _per_user_sum(np.where(rank_N <= k, gain_N[order] / np.log2(1 + rank_N), 0.0), count_U)


def _per_user_sum(value_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    total_U: np.ndarray = np.add.reduceat(value_N, np.cumsum(count_U) - count_U)
    return total_U


def _divide(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Quotient, NaN where the denominator is 0."""
    quotient: np.ndarray = np.divide(over, under, out=np.full(len(under), np.nan), where=under > 0)
    return quotient


RATING, CLICK, CHOICE = frozenset({"rating"}), frozenset({"click"}), frozenset({"choice"})
EVERY = RATING | CLICK | CHOICE
"""Lists are judged in the same way, whatever was predicted; of choices, only they are judged."""
SHOWN = 10
"""Items that a user would be shown: the first so many of a list."""


def _per_list(function: Callable[..., np.ndarray], **values: int) -> Callable[[Lists, ItemFacts], np.ndarray]:
    """A function of lists alone as a metric of lists and items."""
    return lambda lists, items: function(lists, **values)


def _popularity(lists: Lists, items: ItemFacts) -> np.ndarray:
    return ranking.mean_over_list(lists, items.popularity_I, SHOWN)


def _novelty(lists: Lists, items: ItemFacts) -> np.ndarray:
    return ranking.mean_over_list(lists, items.novelty_I, SHOWN)


def _diversity(lists: Lists, items: ItemFacts) -> np.ndarray:
    if not len(items.code_T):  # nothing is known about the items' contents
        return np.full(len(lists.item_UL), np.nan)
    return ranking.diversity(lists, items.code_T, items.count_I, SHOWN)


def _coverage(lists: Lists, items: ItemFacts) -> float:
    return float(np.mean(ranking.exposure(lists, len(items), SHOWN) > 0)) if len(items) else float("nan")


def _gini(lists: Lists, items: ItemFacts) -> float:
    return ranking.gini(ranking.exposure(lists, len(items), SHOWN))


AnyMetric = Metric | ListMetric | ExposureMetric
TAKEN = frozenset({"user", "users", "group", "rate", "support_rows", "query_rows", "method", "seed", "by", "undefined"})
"""Columns of rows and keys of summaries that are no metrics."""


def probe(name: str, entry: object) -> str | None:
    """What is wrong with somebody's metric, or None: it is described, and computes a value for each of three users."""
    wrong = of_type(Measure, name, entry, "compute")
    if wrong is not None or not isinstance(entry, Metric | ListMetric | ExposureMetric):
        return wrong
    if name in TAKEN or name.endswith("_chance"):
        return "has the name of another column of the rows"
    if not entry.targets or not entry.targets <= EVERY:
        return f"measures {', '.join(sorted(entry.targets)) or 'nothing'}; known: {', '.join(sorted(EVERY))}"
    if entry.better not in ("lower", "higher") or not isinstance(entry.digits, int) or entry.digits < 0:
        return "needs 'lower' or 'higher' as `better`, and a whole number of `digits`"
    if isinstance(entry, Metric):
        target_N = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
        computed = entry.compute(target_N, np.array([0.9, 0.2, 0.4, 0.5, 0.5, 0.1]), np.array([3, 1, 2]))
    else:
        item_UL = np.full((3, ranking.LENGTH), -1)
        item_UL[:, :3] = [[0, 1, 2], [2, 0, -1], [1, 2, 0]]
        liked_UL = item_UL == 1
        lists = Lists(item_UL, liked_UL, liked_UL, liked_UL.sum(axis=1), np.array([2, 0, 1]))
        facts = ItemFacts(np.array([3, 1, 2]), 4, np.array([1, 2, 1]), np.array([1, 1, 1]))
        computed = np.asarray(entry.compute(lists, facts))
    expected = () if isinstance(entry, ExposureMetric) else (3,)
    if not isinstance(computed, np.ndarray) or computed.shape != expected or computed.dtype.kind not in "fiub":
        shape = getattr(computed, "shape", type(computed).__name__)
        return f"computes {shape} for three users, not {'one number' if expected == () else 'one number for each'}"
    return None


_ALL: tuple[AnyMetric, ...] = (
    Metric("mse", "MSE", "lower", 3, RATING, squared_error),
    Metric("ndcg3", "nDCG@3", "higher", 3, RATING, partial(ndcg, k=3), partial(ndcg_by_chance, k=3), graded=True),
    Metric("ndcg5", "nDCG@5", "higher", 3, RATING, partial(ndcg, k=5), partial(ndcg_by_chance, k=5), graded=True),
    Metric("mae", "MAE", "lower", 3, RATING, absolute_error),
    Metric("nel", "NEL", "lower", 4, CLICK, weighted_entropy),
    Metric("auc", "AUC per user", "higher", 4, CLICK, auc, pooled="AUC, pooled over users"),
    ListMetric("ndcg10", "nDCG@10, catalogue", "higher", 3, EVERY, _per_list(ranking.discounted_gain, k=10)),
    ListMetric("recall20", "recall@20, catalogue", "higher", 3, EVERY, _per_list(ranking.recall, k=20)),
    ListMetric("hit10", "hit@10, catalogue", "higher", 3, EVERY, _per_list(ranking.hit, k=10)),
    ListMetric("mrr", "MRR, catalogue", "higher", 3, EVERY, _per_list(ranking.reciprocal_rank)),
    # shown, not judged: each entry has users of its own, those on whose lists it hits something rated
    ListMetric(
        "liked10", "liked of rated", "higher", 3, RATING | CLICK, _per_list(ranking.liked_share, k=SHOWN), "contents"
    ),
    ListMetric("popularity", "popularity", "lower", 3, EVERY, _popularity, "contents"),
    ListMetric("novelty", "novelty, bits", "higher", 2, EVERY, _novelty, "contents"),
    ListMetric("diversity", "diversity", "higher", 3, EVERY, _diversity, "contents"),
    ExposureMetric("coverage", "coverage", "higher", 3, EVERY, _coverage),
    ExposureMetric("gini", "Gini of exposure", "lower", 3, EVERY, _gini),
)
METRICS: dict[str, AnyMetric] = {metric.name: metric for metric in _ALL}
"""All metrics, in the order of tables; the first for a kind of target is its headline, which training watches if it is
one of rows."""


METRIC_REGISTRY: Registry[AnyMetric] = Registry("metric", METRICS, probe)


def metrics_for(kind: str) -> list[Metric | ListMetric]:
    """The metrics of a kind of target that have one value per user; the headline first."""
    return [metric for metric in _all_for(kind) if not isinstance(metric, ExposureMetric)]


def row_metrics(kind: str) -> list[Metric]:
    """Those of predictions for query rows."""
    return [metric for metric in _all_for(kind) if isinstance(metric, Metric)]


def list_metrics(kind: str) -> list[ListMetric]:
    """Those of the list that a user would be shown."""
    return [metric for metric in _all_for(kind) if isinstance(metric, ListMetric)]


def exposure_metrics(kind: str) -> list[ExposureMetric]:
    """Those of the lists of all users together."""
    return [metric for metric in _all_for(kind) if isinstance(metric, ExposureMetric)]


def headline(kind: str) -> Metric | ListMetric:
    """The metric by which a kind of target is judged first: MSE of ratings, NEL of clicks, nDCG@10 of choices."""
    return metrics_for(kind)[0]


def _all_for(kind: str) -> list[AnyMetric]:
    return [metric for metric in METRIC_REGISTRY.all().values() if kind in metric.targets]
