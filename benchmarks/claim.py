"""Does a rate of one's own help anybody? Personal rates against fixed ones of equal size, minor users apart.

Four questions, each answered user by user on test users, with bootstrap intervals and the sign of every trial:
personal rates against a fixed rate of the same mean, trained in the same way, with and without memory and regulariser;
the same where few ratings are known; a trained PAML with its own rates against the same network with everyone at their
mean; and what could be gained at best, if each group or user had the best rate of a grid.

    python -m benchmarks.claim DATA [OUT] [seeds=N] [scope=SCOPE] [KEY=VALUE ...]     settings of trainings: epochs=20

SCOPE is `short` (PAML and the fixed rate of equal size), `usual` (also the regulariser, a rate per parameter and a grid
of fixed rates) or `all` (also AT-PAML, which takes as long as all others together). An unfinished OUT is continued.
Single trainings of eight epochs. If rates reach their bound, the bound is doubled.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

import paml
from benchmarks.ablation import SHORT, cells, error
from paml.analysis.comparisons import Paired, paired
from paml.analysis.plan import cell_name, read_plan
from paml.evaluation.metrics import headline
from paml.evaluation.scoring import Split
from paml.experiments.compare import run_grid
from paml.experiments.plan import choose_entries, make_plan, open_comparison
from paml.files import write_text
from paml.methods.rates import FixedRate
from paml.progress import for_terminal
from paml.report.refresh import gather
from paml.settings import parse_assignments
from paml.training.run import Run

SEEDS = 3
FIRST_BOUND = 0.5
SATURATED = 0.05  # the bound is doubled if more users than this share are within a tenth of it
FIXED = ("melu inner_rate=0.1", "melu inner_rate=0.2", "melu inner_rate=0.4", "melu inner_rate=0.8")
PERSONAL = {
    "paml": "personal rate (PAML)",
    "at_paml": "and memory (AT-PAML)",
    "reg_paml": "and regulariser (REG-PAML), gamma 0.001",
    "reg_paml gamma=0.1": "and regulariser, gamma 0.1",
}
PER_PARAMETER = "meta_sgd"
SCOPES = {
    "short": ("paml",),
    "usual": ("paml", "reg_paml", "reg_paml gamma=0.1", PER_PARAMETER, *FIXED),
    "all": (*PERSONAL, PER_PARAMETER, *FIXED),
}
OWN_RATES = "PAML's own rates instead of their mean for everyone"
TUNED = "tuned"
FACTORS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
SHOTS = ("all", "5", "1")
GROUPS = ("all", "major", "minor")


@dataclass(frozen=True)
class Claim:
    """A finished comparison."""

    folder: Path
    metric: str
    bound: float
    rows: pl.DataFrame
    """One row per entry, seed and test user; the entry `TUNED` is the fixed rate that validation users chose."""
    scenarios: pl.DataFrame
    entries: Sequence[str]
    equal: Mapping[str, str]
    """Entry with personal rates -> the fixed rate of equal size."""
    chosen: Sequence[str]
    """The fixed rate that validation users chose, per seed."""


def main() -> None:
    """Fit what is missing, and print the tables."""
    texts = [text for text in sys.argv[1:] if "=" in text]
    data, *rest = [text for text in sys.argv[1:] if "=" not in text]
    settings: dict[str, Any] = {**SHORT, **parse_assignments(texts)}
    seeds, scope = int(settings.pop("seeds", SEEDS)), settings.pop("scope", "usual")
    torch.set_num_threads(1)
    claim = fit(data, Path(rest[0] if rest else "paml-claim"), seeds, SCOPES[scope], settings)
    print(f"Rates of at most {claim.bound:g}; fixed rates chosen by validation users: {', '.join(claim.chosen)}.\n")
    print_errors(claim)
    print_few(claim)
    found = print_after_training(claim)
    write_summary(claim, found)


def fit(data: str, out: Path, seeds: int, entries: Sequence[str], settings: Mapping[str, Any]) -> Claim:
    """All trainings; the bound of personal rates is doubled until users' rates stay below it."""
    bound = float(settings.get("rate_scale", FIRST_BOUND))
    while True:
        folder, values = out / f"bound-{bound:g}", {**settings, "rate_scale": bound}
        rates = fit_entries(data, folder, seeds, ["paml"], values).filter(pl.col("method") == "paml")["rate"]
        if (rates > 0.9 * bound).mean() <= SATURATED:  # type: ignore[operator]
            break
        print(f"With rates of at most {bound:g} their mean is {rates.mean():.3f}: the bound is doubled.")
        bound *= 2
    rows = fit_entries(data, folder, seeds, entries, values)
    personal = {name: PERSONAL[name] for name in entries if name in PERSONAL}
    means = {name: float(rows.filter(pl.col("method") == name)["rate"].mean()) for name in personal}  # type: ignore[arg-type]
    equal = equal_rates(means, entries)
    wanted = list(dict.fromkeys([*entries, *equal.values()]))
    rows = fit_entries(data, folder, seeds, wanted, values)
    scenarios, history = (pl.read_parquet(folder / f"{name}.parquet") for name in ("scenarios", "history"))
    fixed = [name for name in wanted if name.startswith("melu")]
    chosen = chosen_by_validation(history.filter(pl.col("method").is_in(fixed)))
    metric = headline(read_plan(folder).data.target).name
    rows, scenarios = with_tuned(rows, chosen), with_tuned(scenarios, chosen)
    return Claim(folder, metric, bound, rows, scenarios, wanted, equal, chosen)


def fit_entries(path: str, folder: Path, seeds: int, names: Sequence[str], settings: Mapping[str, Any]) -> pl.DataFrame:
    """Fit entries that are not fitted yet; the rows of all that are."""
    data = paml.open_data(path)
    entries = choose_entries(data.schema.target.kind, "tuned", [], [], names)
    wanted = make_plan(data, entries, seeds, "tuned", same_split=False, group_by=None, settings=settings)
    plan = open_comparison(folder, wanted)
    run_grid(data, folder, plan, for_terminal())
    gather(folder, plan)
    return pl.read_parquet(folder / "rows.parquet")


def equal_rates(means: Mapping[str, float], entries: Sequence[str]) -> dict[str, str]:
    """For each entry with personal rates a fixed rate as large as their mean, to within a tenth: known, or new."""
    known, found = [name for name in entries if name.startswith("melu")], {}
    for name, mean in means.items():
        near = [entry for entry in known if abs(fixed_rate(entry) - mean) <= 0.1 * mean]
        found[name] = near[0] if near else f"melu inner_rate={mean:.2g}"
        known.append(found[name])
    return found


def chosen_by_validation(history: pl.DataFrame) -> list[str]:
    """Per seed, the entry with the lowest error on validation users in its best epoch."""
    best = history.group_by("seed", "method").agg(pl.col("validation").min()).sort("seed", "validation", "method")
    return best.group_by("seed", maintain_order=True).first()["method"].to_list()


def with_tuned(rows: pl.DataFrame, chosen: Sequence[str]) -> pl.DataFrame:
    """Rows, and those of the fixed rate that validation users chose, once more under its name."""
    pairs = enumerate(chosen)
    picked = [rows.filter((pl.col("method") == name) & (pl.col("seed") == seed)) for seed, name in pairs]
    return pl.concat([rows, *(part.with_columns(method=pl.lit(TUNED)) for part in picked)])


def fixed_rate(name: str) -> float:
    """Of an entry with a fixed rate."""
    return float(name.partition("=")[2])


def of_group(rows: pl.DataFrame, group: str) -> pl.DataFrame:
    """The rows of a group of users."""
    return rows if group == "all" else rows.filter(pl.col("group") == group)


def differences(rows: pl.DataFrame, name: str, reference: str, metric: str) -> Iterator[Paired]:
    """name - reference, of all, major and minor users."""
    for group in GROUPS:
        yield paired(of_group(rows, group), name, reference, metric)


def difference_cells(found: Paired) -> str:
    """A difference, its interval over users, and the sign of each trial."""
    return f"{cells(found)} | {''.join('-' if value < 0 else '+' if value > 0 else '0' for value in found.by_seed)}"


def rate_cell(rows: pl.DataFrame, name: str, group: str) -> str:
    """Mean over a group's users and seeds, and the spread between users of a seed."""
    rates = of_group(rows.filter(pl.col("method") == name), group).group_by("seed")
    by_seed = rates.agg(m=pl.col("rate").mean(), s=pl.col("rate").std())
    return f"{by_seed['m'].mean():.3f} ± {by_seed['s'].mean():.3f}"


def print_errors(claim: Claim) -> None:
    """Rates, errors, and differences from the fixed rate of equal size."""
    heads = "difference from a fixed rate of equal size | 95 % | trials"
    print(
        f"| | rates: major | minor | {claim.metric.upper()} | major | minor | {heads} | minor users | 95 % | trials |"
    )
    print("|---|---|---|---:|---:|---:|---:|---|---|---:|---|---|")
    fixed = sorted((name for name in claim.entries if name.startswith("melu")), key=fixed_rate)
    labels = {name: f"fixed rate {fixed_rate(name):g}" for name in fixed}
    labels |= {TUNED: "fixed rate chosen by validation users"} if len(fixed) > 1 else {}
    learned = PERSONAL | {PER_PARAMETER: "a rate per parameter (Meta-SGD)"}
    labels |= {name: label for name, label in learned.items() if name in claim.entries}
    for name, label in labels.items():
        rows, reference = claim.rows, claim.equal.get(name, claim.equal["paml"])
        means = " | ".join(f"{error(of_group(rows, group), name, claim.metric):.4f}" for group in GROUPS)
        everyone, _, minor = differences(rows, name, reference, claim.metric)
        compared = f"{difference_cells(everyone)} | {difference_cells(minor)}" if name != reference else "| | | | |"
        print(
            f"| {label} | {rate_cell(rows, name, 'major')} | {rate_cell(rows, name, 'minor')} | {means} | {compared} |"
        )


def print_few(claim: Claim) -> None:
    """PAML against the fixed rate of equal size, and the tuned one, where few ratings are known."""
    print(
        "\n| ratings known | PAML against | all users | 95 % | trials | major | 95 % | trials | minor | 95 % | trials |"
    )
    print("|---|---|---:|---|---|---:|---|---|---:|---|---|")
    for shots in SHOTS:
        rows = claim.scenarios.filter((pl.col("scenario") == "shots") & (pl.col("value") == shots)).drop("value")
        references = {claim.equal["paml"]: "equal size"}
        references |= {TUNED: "chosen by validation users"} if set(claim.chosen) != {*references} else {}
        for reference, label in references.items():
            compared = " | ".join(map(difference_cells, differences(rows, "paml", reference, claim.metric)))
            print(f"| {shots} | {label} | {compared} |")


def print_after_training(claim: Claim) -> dict[str, list[Paired]]:
    """What rates alone do: trained networks, scored again with other rates."""
    seeds = sorted(claim.rows["seed"].unique())
    rows = pl.concat([pl.concat([equalised(claim, seed), on_a_grid(claim, seed)]) for seed in seeds])
    lines = {
        OWN_RATES: ("own", "mean"),
        "best rate per group instead of one for all, both chosen by validation users": ("per group", "for all"),
        "upper bound: best rate per group, chosen by the test users themselves": ("per group, test", "for all, test"),
        "upper bound: best rate per user, chosen by the query ratings themselves": ("per user, test", "for all, test"),
    }
    print(
        "\n| rates changed after training | all users | 95 % | trials | major | 95 % | trials | minor | 95 % | trials |"
    )
    print("|---|---:|---|---|---:|---|---|---:|---|---|")
    found = {name: list(differences(rows, *pair, claim.metric)) for name, pair in lines.items()}
    for name, compared in found.items():
        print(f"| {name} | {' | '.join(map(difference_cells, compared))} |")
    return found


def equalised(claim: Claim, seed: int) -> pl.DataFrame:
    """PAML's test users with their own rates, and with the mean of all rates."""
    own = claim.rows.filter((pl.col("method") == "paml") & (pl.col("seed") == seed))
    run = Run.load(claim.folder / "runs" / cell_name("paml", seed))
    same = with_rate(run, float(own["rate"].mean()), "test")  # type: ignore[arg-type]
    return pl.concat(named(frame, name, seed, claim.metric) for name, frame in (("own", own), ("mean", same)))


def on_a_grid(claim: Claim, seed: int) -> pl.DataFrame:
    """A network trained with a fixed rate, with the best rate of a grid for all, per group and per user."""
    name = claim.equal["paml"]
    run, rate = Run.load(claim.folder / "runs" / cell_name(name, seed)), fixed_rate(name)
    scored: dict[Split, pl.DataFrame] = {
        split: pl.concat(
            with_rate(run, rate * factor, split).with_columns(factor=pl.lit(factor)) for factor in FACTORS
        ).with_columns(everyone=pl.lit("all"))
        for split in ("validation", "test")
    }
    frames = []
    for by, label in (("everyone", "for all"), ("group", "per group"), ("user", "per user")):
        for judge, suffix in (("validation", ""), ("test", ", test")):
            if by == "user" and judge == "validation":
                continue  # nobody is both
            means = scored[judge].group_by(by, "factor").agg(pl.col(claim.metric).mean())  # type: ignore[index]
            best = means.sort(claim.metric, "factor").group_by(by).first().select(by, "factor")
            frames.append(named(scored["test"].join(best, on=[by, "factor"]), label + suffix, seed, claim.metric))
    return pl.concat(frames)


def with_rate(run: Run, rate: float, split: Split) -> pl.DataFrame:
    """A split's users, scored by a trained network with one rate for everyone."""
    for member in run.ensemble.members:
        member.rates = FixedRate(rate)
    return run.evaluate(split=split)


def named(rows: pl.DataFrame, name: str, seed: int, metric: str) -> pl.DataFrame:
    """Rows as those of an entry."""
    return rows.select(method=pl.lit(name), seed=pl.lit(seed), user="user", group="group", **{metric: metric})


def write_summary(claim: Claim, found: Mapping[str, list[Paired]]) -> None:
    """What a figure of several data sets needs, next to the comparison: `claim.json`."""
    facts = read_plan(claim.folder).data
    lines = {
        label: list(differences(claim.rows, name, claim.equal[name], claim.metric))
        for name, label in PERSONAL.items()
        if name in claim.equal
    }
    summary = {
        "source": facts.source,
        "settings": paml.open_data(facts.path).manifest.source.settings,
        "metric": claim.metric,
        "fixed": {group: error(of_group(claim.rows, group), claim.equal["paml"], claim.metric) for group in GROUPS},
        "rates": {group: rate_cell(claim.rows, "paml", group) for group in GROUPS},
        "differences": {
            name: {group: paired_facts(one) for group, one in zip(GROUPS, three, strict=True)}
            for name, three in {**lines, **found}.items()
        },
    }
    write_text(claim.folder.parent / "claim.json", json.dumps(summary, indent=1) + "\n")


def paired_facts(found: Paired) -> dict[str, Any]:
    """A difference with its interval, and that of each trial."""
    assert found.interval is not None
    return {
        "difference": found.difference,
        "low": found.interval.low,
        "high": found.interval.high,
        "trials": found.by_seed,
    }


if __name__ == "__main__":
    main()
