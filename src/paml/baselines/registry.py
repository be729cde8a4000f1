"""All baselines, in the order used in tables, and those of others after them."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from paml.baselines.boosting import fit_lightgbm
from paml.baselines.cmfrec import fit_collective
from paml.baselines.factorisation import fit_retrained
from paml.baselines.item_item import fit_edlae
from paml.baselines.lenskit import fit_factorisation, fit_neighbours
from paml.baselines.lenskit_ranking import fit_ease, fit_implicit_factorisation, fit_implicit_neighbours, fit_slim
from paml.baselines.logistic import fit_logistic
from paml.baselines.means import fit_bias, fit_constant, fit_item_mean, fit_user_mean
from paml.baselines.popularity import fit_popular, fit_popular_profile
from paml.baselines.rows import Fitted
from paml.data.dataset import Dataset
from paml.errors import SettingsError
from paml.registry import Registry, of_type

RATING, CLICK, CHOICE = frozenset({"rating"}), frozenset({"click"}), frozenset({"choice"})
BOTH = RATING | CLICK
EVERY = BOTH | CHOICE


@dataclass(frozen=True)
class Baseline:
    """A predictor to beat, or a reference that knows more than a method may."""

    name: str
    label: str
    """Name in tables."""
    kinds: frozenset[str]
    """The kinds of target it predicts."""
    fitting: Callable[[Dataset, int], Fitted]
    needs: str | None = None
    """A package beyond paml's own dependencies."""
    extra: str = "baselines"
    """The extra of paml that installs it."""
    reference: bool = False
    """Listed above the line: the test users' support rows are among its training rows."""
    ranks: bool = False
    """Ranks the whole catalogue and predicts no targets."""

    def is_installed(self) -> bool:
        """Whether the package it needs is installed."""
        return self.needs is None or find_spec(self.needs) is not None

    def require(self, kind: str) -> None:
        """Raise a SettingsError unless it predicts this kind of target and its package is installed."""
        if kind not in self.kinds:
            problem = f"the baseline '{self.name}' does not predict a {kind}"
            fitting = baselines_for(kind) | rankers_for(kind)
            raise SettingsError(problem, remedy=f"choose from {', '.join(fitting)}")
        if not self.is_installed():
            missing = f"the baseline '{self.name}' needs the package '{self.needs}'"
            extra = f"'paml[{self.extra}]'" if BASELINE_REGISTRY.origin(self.name) is None else self.needs
            raise SettingsError(missing, remedy=f"pip install {extra}")

    def fit(self, data: Dataset, seed: int = 0) -> Fitted:
        """Fit on training users and choose the settings on validation users."""
        self.require(data.schema.target.kind)
        return self.fitting(data, seed)


_ALL = (
    Baseline("training_mean", "training mean", RATING, fit_constant),
    Baseline("user_mean", "user's mean", RATING, fit_user_mean),
    Baseline("item_mean", "item's mean", RATING, fit_item_mean),
    Baseline("bias", "item + user bias", RATING, fit_bias),
    Baseline("lenskit_mf", "matrix factorisation, folded in (LensKit)", RATING, fit_factorisation, "lenskit"),
    Baseline("lenskit_knn", "item neighbours (LensKit)", RATING, fit_neighbours, "lenskit"),
    Baseline("cmfrec", "collective factorisation (cmfrec)", RATING, fit_collective, "cmfrec", extra="cmfrec"),
    Baseline("constant_rate", "training rate", CLICK, fit_constant),
    Baseline("user_rate", "user's rate", CLICK, fit_user_mean),
    Baseline("logistic", "logistic regression", CLICK, fit_logistic, "sklearn"),
    Baseline("lightgbm", "gradient boosting (LightGBM)", BOTH, fit_lightgbm, "lightgbm"),
    Baseline("retrained_mf", "matrix factorisation, retrained", RATING, fit_retrained, reference=True),
    Baseline("popular", "most liked", EVERY, fit_popular, ranks=True),
    Baseline("popular_profile", "most liked by profile", EVERY, fit_popular_profile, ranks=True),
    Baseline(
        "lenskit_implicit_knn",
        "item neighbours, implicit (LensKit)",
        EVERY,
        fit_implicit_neighbours,
        "lenskit",
        ranks=True,
    ),
    Baseline(
        "lenskit_implicit_mf",
        "implicit factorisation, folded in (LensKit)",
        EVERY,
        fit_implicit_factorisation,
        "lenskit",
        ranks=True,
    ),
    Baseline("lenskit_slim", "sparse linear method (LensKit)", EVERY, fit_slim, "lenskit", ranks=True),
    Baseline("lenskit_ease", "EASE (LensKit)", EVERY, fit_ease, "lenskit", ranks=True),
    Baseline("edlae", "linear autoencoder + profile (EDLAE)", EVERY, fit_edlae, ranks=True),
)
BASELINES: dict[str, Baseline] = {baseline.name: baseline for baseline in _ALL}


def _problem(name: str, entry: object) -> str | None:
    """What is wrong with somebody's baseline, or None."""
    wrong = of_type(Baseline, name, entry, "fitting")
    if wrong is not None or not isinstance(entry, Baseline):
        return wrong
    if not entry.kinds or not entry.kinds <= EVERY:
        return f"predicts {', '.join(sorted(entry.kinds)) or 'nothing'}; known: {', '.join(sorted(EVERY))}"
    return None


BASELINE_REGISTRY: Registry[Baseline] = Registry("baseline", BASELINES, _problem)


def baselines_for(kind: str) -> dict[str, Baseline]:
    """The baselines that predict ratings, or clicks."""
    return {name: one for name, one in BASELINE_REGISTRY.all().items() if kind in one.kinds and not one.ranks}


def rankers_for(kind: str) -> dict[str, Baseline]:
    """The baselines that rank the whole catalogue, given ratings, clicks or choices."""
    return {name: one for name, one in BASELINE_REGISTRY.all().items() if kind in one.kinds and one.ranks}


def find_baseline(name: str) -> Baseline:
    """The baseline called `name`, or an error that lists the known ones."""
    return BASELINE_REGISTRY.find(name)
