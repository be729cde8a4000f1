"""What the words of a report mean, in its own order; only the words that the comparison uses."""

from paml.analysis.fairness import MARGIN
from paml.analysis.results import Results

_ALWAYS = {
    "entry": "A line of the tables: a baseline, a method, or a variant, which is a method with other settings.",
    "baseline, reference": (
        "A baseline is a simpler predictor that knows what the methods know. A reference knows more: it is fitted "
        "again with the test users' known rows. It is shown, and not ranked."
    ),
    "test user": "A user of whom nothing was used in training; validation users choose settings and stop trainings.",
    "support and query rows": (
        "A user's rows are split once: support rows are what is known about the user, and the method adapts to them; "
        "query rows are what is predicted and scored."
    ),
    "seed, trial": (
        "A seed sets a split of the users, initial weights and episodes; a trial is everything fitted with one seed. A "
        "deviation after ± is the standard deviation over seeds."
    ),
    "major and minor users": (
        "A major user has more than two profile fields with a common value (among the most common 30 % of values), "
        "unless the data set was prepared otherwise; all others are minor users, whom the majority may outweigh."
    ),
    "gap": "The minor users' mean less the major users'. For an error, above 0: minor users fare worse.",
    "p": (
        "How often chance alone would give such a difference or a larger one, if there were none. A large p does not "
        "show that two things are equal."
    ),
    "95 %": "A confidence interval: of a hundred such intervals, about 95 contain the true value.",
    "bootstrap": "Users are drawn again with replacement, each with all rows; the interval is where the results lie.",
    "paired test": "Both values are of the same user, so that what makes a user hard for everybody cancels out.",
    "Wilcoxon": "A paired test by ranks, which a few extreme users cannot decide.",
    "Holm": "A correction of p for several tests at once: one false alarm in twenty for the whole table, not per line.",
    "Welch": "A t-test of two groups that may differ in how much they vary.",
    "p (equal), TOST": (
        f"Two one-sided tests: below 0.05, the groups are shown to differ by less than {100 * MARGIN:g} % of the mean."
    ),
    "surely": "p after Holm's correction is below 0.05, and all seeds have the same sign.",
    "warm and cold items": "Training users interacted with warm items, and not with cold ones.",
}
_METRICS = {
    "mse": ("MSE", "Mean squared error of a user's query rows; then the mean over users."),
    "mae": ("MAE", "Mean absolute error, likewise."),
    "ndcg3": (
        "nDCG@3, nDCG@5",
        "How well a user's own query rows are ordered, and nothing else: gain 2^rating − 1, discount log2(1 + rank), "
        "divided by the best possible order of these rows. 1 is perfect. Scales that begin below 0 are moved to 0 for "
        "that, and those of more than 20 are mapped to 0 to 5.",
    ),
    "nel": (
        "NEL",
        "Weighted negative entropy loss of clicks: the mean of −w log p′(label), with w = 0.9 for clicked and 0.1 for "
        "other rows, and p′ = 0.9 p / (0.9 p + 0.1 (1 − p)) for a predicted chance p. Right chances have the lowest "
        "loss; without p′, too high ones would have it.",
    ),
    "ndcg10": (
        "nDCG@10, catalogue",
        "How good the list is that a user would be shown: all items but the support rows are ranked, never a sample; "
        "relevant items (liked, clicked or chosen, among the query rows) at the top count most. 1: all of them come "
        "first.",
    ),
    "recall20": (
        "recall@20, hit@10, MRR",
        "Of the same list: the share of relevant items among the first 20 (of as many as fit); whether one is among "
        "the first ten; 1 / rank of the first relevant item.",
    ),
    "auc": ("AUC", "The chance that a clicked row has a higher prediction than another row."),
}
_ORDERS = (
    "What lists are ordered by. Choice is the chance that a user chooses an item, rating the predicted rating. "
    "Preference blends both with what goes with what, and with what is popular among users with the same profile."
)
_CHOICES = (
    "What lists are ordered by. Choice is the chance that a user chooses an item. Preference blends it with what goes "
    "with what, and with what is popular among users with the same profile."
)
_CHANCE = "What a random order of a user's query rows would have on average: the level below which nothing is learned."
_RATES = {
    "learning rate": (
        "The size of the gradient step by which a method adapts to a user. With PAML it depends on the user's profile, "
        "and cannot exceed a bound."
    ),
    "prior variance": (
        "What closed-form ridge has in place of a learning rate: how far a user's weights may lie from everybody's. "
        "The larger it is, the more the user's own rows count."
    ),
}


def glossary(results: Results) -> dict[str, str]:
    """Word -> meaning."""
    names = [metric.name for metric in results.plan.metrics]
    metrics = {word: meaning for name, (word, meaning) in _METRICS.items() if name in names}
    metrics |= {metric.label: metric.meaning for metric in results.plan.metrics if metric.meaning}
    chance = {"by chance": _CHANCE} if results.chance else {}
    known = {"preference, choice": _CHOICES} if results.plan.lists_only else {"preference, choice, rating": _ORDERS}
    orders = known if results.by.means else {}
    used = {found.label for found in results.rates.values()}
    rates = {word: meaning for word, meaning in _RATES.items() if word in used}
    return {**_ALWAYS, **metrics, **orders, **chance, **rates}
