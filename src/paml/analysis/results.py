"""What a comparison found, as `results.json` and `costs.json` hold it: tables, figures and page are made from this.

None stands for whatever is not finished or cannot be computed.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from paml.analysis.comparisons import Improvement, OverSeeds, Paired, TTest
from paml.analysis.environment import Environment, read_environments
from paml.analysis.fairness import GroupGap
from paml.analysis.plan import AGAIN, FORMAT, Plan
from paml.errors import FormatError
from paml.files import as_model, read_bounded, read_json, write_text
from paml.settings import Settings


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_finite)]
"""A finite number, or None."""


class MissingCell(Settings):
    """An entry with a seed that is not finished."""

    method: str
    seed: int
    reason: str | None = None
    """Why it failed; None if it was not tried yet."""


class Pooled(Settings):
    """A metric over the query rows, or the lists, of all users together: mean and standard deviation over seeds."""

    mean: Number
    deviation: Number
    """None with a single seed."""
    seeds: int


class Best(Settings):
    """The best entries by a metric."""

    baseline: str | None
    method: str | None
    """Or a variant of one."""


class Groups(Settings):
    """Major and minor users of an entry, by a metric."""

    test: TTest
    """The paper's test."""
    gap: GroupGap
    gap_against_baseline: GroupGap | None
    """The gap minus that of the best baseline."""


class Rates(Settings):
    """The rates that an entry gives its users: means over seeds."""

    label: str
    """What they are: learning rates, or the variances of a prior."""
    mean: Number
    deviation: Number
    """Between the users of a seed."""
    bound: Number
    """The largest possible rate, where it is known."""
    at_bound: Number
    """The share of users within 1 % of it."""
    gap: GroupGap
    """Minor users' mean less major users'."""
    gap_by_seed: tuple[float, ...]


class ProfileMean(Settings):
    """An entry's mean over the users with one value in their profiles."""

    mean: Number
    users: int


class ByProfile(Settings):
    """The headline metric by a field of the users' profiles."""

    field: str
    values: dict[str, dict[str, ProfileMean]]
    """Value -> entry -> mean."""


class ActivityBin(Settings):
    """Users with similar numbers of support rows."""

    label: str
    users: int
    means: dict[str, Number]
    """By entry."""


class ByActivity(Settings):
    """The headline metric by the users' numbers of support rows."""

    bins: tuple[ActivityBin, ...]


class Shots(Settings):
    """A metric by the number of a user's support rows that are known."""

    values: tuple[str, ...]
    means: dict[str, tuple[Number, ...]]
    """Entry -> a mean for each of the values."""


class ShotTest(Settings):
    """With so many known support rows: the best method (or variant) and the best baseline, user by user."""

    value: str
    baseline: str | None
    baseline_mean: Number
    method: str | None
    method_mean: Number
    paired: Paired | None
    """Without Holm's correction: one method is tested, chosen because it is the best."""

    @property
    def ratio(self) -> float | None:
        """The method's mean over the baseline's."""
        both = self.method_mean is not None and self.baseline_mean
        return self.method_mean / self.baseline_mean if both else None  # type: ignore[operator]


class ListOrders(Settings):
    """What lists may be ordered by: entries with a choice part."""

    means: dict[str, dict[str, dict[str, Number]]] = Field(default_factory=dict)
    """Entry -> order (rating, choice, preference) -> metric of lists, with all ratings known."""
    shots: dict[str, Shots] = Field(default_factory=dict)
    """Order (choice, rating) -> the first metric of lists by the number of known ratings."""
    choice_over_rating: dict[str, dict[str, Paired]] = Field(default_factory=dict)
    """Metric of lists -> entry -> its lists by choice less those by predicted rating."""
    personal_rates: dict[str, tuple[Paired, ...]] = Field(default_factory=dict)
    """Metric of lists -> by choice alone: methods with a rate per user less MeLU."""


class Items(Settings):
    """The headline metric on items that training users interacted with (warm) or did not (cold), by entry."""

    warm: dict[str, Number]
    cold: dict[str, Number]
    cold_users: int
    known: dict[str, Number] = Field(default_factory=dict)
    """On new items, for users who are training users; empty if no items were held out."""
    known_users: int = 0


class Cost(Settings):
    """Time and memory of an entry, means over seeds."""

    fit_seconds: Number = None
    seconds_per_epoch: Number = None
    users_per_second: Number = None
    adapt_ms: Number = None
    rank_ms: Number = None
    peak_mb: Number = None
    refit_seconds: Number = None


class PaperRow(Settings):
    """A number that the paper prints, beside ours."""

    table: str
    method: str
    """Our entry, or the paper's line where there is none."""
    label: str
    metric: str
    """`p_value` is that of major against minor users."""
    group: str
    ours: Number
    deviation: Number
    star: bool = False
    """Whether ours is significantly better by the paper's test: in its ablation than PAML, else than its baselines."""
    paper: Number
    """None for entries of ours that the paper does not have."""
    paper_deviation: Number
    paper_star: bool = False


class Paper(Settings):
    """What the paper says about the data set."""

    source: str
    rows: tuple[PaperRow, ...]
    footnotes: dict[str, tuple[str, ...]]
    """Those of its tables."""
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    """For data without a table in the paper."""


class Results(Settings):
    """What a comparison found, as `paml.compare` returns it: everything that its report says.

    Only `cost` and `environments` depend on machine and hour; everything else is the same in every repetition.

    >>> results = paml.compare(data, ["melu", "reg_paml"], seeds=3, out="comparison")
    >>> results.mean("reg_paml"), results.summary("reg_paml", "ndcg3", "minor").mean
    """

    format: Literal[4] = FORMAT
    plan: Plan
    missing: tuple[MissingCell, ...]
    seeds: tuple[int, ...]
    """Those that are compared: the seeds that all entries have."""
    table: dict[str, dict[str, dict[str, OverSeeds]]]
    """Metric -> entry -> group (all, major, minor)."""
    pooled: dict[str, dict[str, Pooled]] = Field(default_factory=dict)
    """Metric -> entry, over the rows or the lists of all users together: of the plan's `pooled` metrics."""
    best: Best
    """By the headline metric."""
    best_lists: Best = Best(baseline=None, method=None)
    """By the metric that lists are judged by first."""
    loses_to: dict[str, tuple[str, ...]]
    """Methods and variants -> the baselines whose mean is better, the best first."""
    improvements: dict[str, dict[str, Improvement]]
    """Metric -> entry: the paper's test against the best of the paper's baselines."""
    paired: dict[str, tuple[Paired, ...]]
    """Metric -> methods and variants against the best baseline; metrics by which entries are not judged have none."""
    pairs: tuple[Paired, ...] = ()
    """Every two methods, and variants with their methods, by the headline metric: the second less the first."""
    against_paml: dict[str, dict[str, Improvement]] = Field(default_factory=dict)
    """Metric -> entry: the paper's test against PAML, as in its ablation."""
    chance: dict[str, OverSeeds] = Field(default_factory=dict)
    """Metric -> what a random order gives, for metrics that have such a level."""
    groups: dict[str, Groups]
    """By the headline metric."""
    list_groups: dict[str, Groups] = Field(default_factory=dict)
    """Entries that rank, by the metric that lists are judged by first."""
    rates: dict[str, Rates] = Field(default_factory=dict)
    """Entries that give every user a rate."""
    by_group: ByProfile | None
    by_activity: ByActivity
    shots: dict[str, Shots]
    """Metric -> by the number of known ratings: the headline metric, and those of lists."""
    shot_tests: dict[str, tuple[ShotTest, ...]] = Field(default_factory=dict)
    """Metric of lists -> for each number of known ratings, the best method against the best baseline."""
    by: ListOrders = ListOrders()
    """What lists are ordered by."""
    items: Items
    cost: dict[str, Cost]
    environments: tuple[Environment, ...] = ()
    """In which cells were fitted; more than one if a comparison was continued elsewhere."""
    paper: Paper | None = None
    """None where the paper has nothing on the data."""
    verdict: tuple[str, ...] = ()

    @property
    def failed(self) -> list[MissingCell]:
        """The cells that could not be fitted."""
        return [cell for cell in self.missing if cell.reason is not None]

    def _repr_html_(self) -> str:
        """For notebooks."""
        from paml.analysis.show import results_html

        return results_html(self)

    def summary(self, entry: str, metric: str | None = None, group: str = "all") -> OverSeeds:
        """Mean and deviation of an entry, by the headline metric unless another is named."""
        return self.table[metric or self.plan.headline.name][entry][group]

    def mean(self, entry: str, metric: str | None = None) -> float | None:
        """The mean of an entry over all users."""
        return self.summary(entry, metric).mean


def read_results(folder: Path) -> Results:
    """The results in a comparison's folder."""
    remedy = "make it with `paml compare`"
    path = folder / "results.json"
    values, costs = (read_json(file, remedy) for file in (path, folder / "costs.json"))
    return as_model(Results, {**values, "cost": costs, "environments": read_environments(folder)}, path, AGAIN)


def write_results(folder: Path, results: Results) -> None:
    """Store results and costs, each atomically: costs differ in every measurement, results do not."""
    write_text(folder / "results.json", results.model_dump_json(indent=1, exclude={"cost", "environments"}) + "\n")
    costs = results.model_dump(mode="json", include={"cost"})["cost"]
    write_text(folder / "costs.json", json.dumps(costs, indent=1, allow_nan=False) + "\n")


_CELLS = TypeAdapter(tuple[MissingCell, ...])


def read_failures(folder: Path) -> dict[tuple[str, int], str]:
    """Cells that could not be fitted, and why."""
    path = folder / "failures.json"
    if not path.exists():
        return {}
    remedy = "remove it: failed cells are then tried again"
    try:
        cells = _CELLS.validate_json(read_bounded(path, remedy))
    except ValidationError:
        raise FormatError("is not a list of failures", where=path, remedy=remedy) from None
    return {(cell.method, cell.seed): cell.reason for cell in cells if cell.reason is not None}


def write_failures(folder: Path, cells: list[MissingCell]) -> None:
    """Store the cells that could not be fitted."""
    write_text(folder / "failures.json", json.dumps([cell.model_dump() for cell in cells], indent=1) + "\n")
