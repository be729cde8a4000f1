"""What each ingredient of the recipe `tuned` contributes: added to a bare model, and removed from the complete one.

Differences are paired: user by user within a seed, averaged over users and seeds, with a bootstrap interval over users.
The table of rates asks what a personal rate gains over a fixed one of the same size, and what memory and regulariser
add.

    python -m benchmarks.ablation DATA [OUT]      a prepared rating data set; OUT is continued if it is unfinished

Single trainings of eight epochs, a hundred of them in a quarter of an hour; ensembles gain from the same ingredients.
"""

import sys
from pathlib import Path

import polars as pl
import torch

import paml
from paml.analysis.comparisons import Paired, paired
from paml.progress import for_terminal

SEEDS = 3
SHORT = {"ensemble_size": 1, "epochs": 8}
METHODS = ("melu", "meta_sgd", "paml", "at_paml", "reg_paml", "ridge")
RATES = {
    "melu": "fixed rate, 0.4: the mean of PAML's",
    "melu inner_rate=0.2": "fixed rate, 0.2",
    "melu inner_rate=0.8": "fixed rate, 0.8",
    "paml rate_scale=1": "personal rate, at most 1 instead of 0.5",
    "meta_sgd": "a rate per parameter",
    "at_paml": "personal rate and memory",
    "reg_paml": "personal rate and regulariser, gamma 0.001",
    "reg_paml gamma=0.1": "personal rate and regulariser, gamma 0.1",
    "paml user_bias_discount=0.8": "personal rate, user bias discounted",
    "paml pseudo_count=0": "personal rate, few rows move as far as many",
    "paml inner_steps=1": "personal rate, one step instead of five",
    "ridge": "closed form instead of gradient steps",
}
INGREDIENTS = {
    "prior_from_items": ("prior_from_items=0", "prior from the choice of items"),
    "prior_from_profile": ("prior_from_profile=false", "prior from the profile"),
    "random_support": ("random_support=false", "random share of support rows"),
    "exclude_fields": ("exclude_fields=item.genre,item.director,item.actors,item.year", "content of items"),
    "weight_decay": ("weight_decay=0", "weight decay"),
    "schedule": ("schedule=constant", "decreasing outer rate"),
    "ema_decay": ("ema_decay=0", "averaged weights"),
    "user_bias_discount": ("user_bias_discount=0", "user bias discounted"),
}
BARE = " ".join(["ridge", *(without for without, _ in INGREDIENTS.values())])


def added(name: str) -> str:
    """The bare model with one ingredient."""
    return " ".join(["ridge", *(without for key, (without, _) in INGREDIENTS.items() if key != name)])


def removed(name: str) -> str:
    """The complete model without one ingredient."""
    return f"ridge {INGREDIENTS[name][0]}"


def main() -> None:
    """Fit what is missing, and print the tables."""
    data, out = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "paml-ablation")
    torch.set_num_threads(1)
    variants = [name for name in RATES if " " in name]
    variants += [BARE, *(removed(name) for name in INGREDIENTS), *(added(name) for name in INGREDIENTS)]
    paml.compare(
        data, METHODS, SEEDS, "tuned", out=out, baselines=[], variants=variants, settings=SHORT, progress=for_terminal()
    )
    rows = pl.read_parquet(out / "rows.parquet")
    rate_table(rows)
    print("\n| closed-form ridge | MSE with it alone | change | 95 % | MSE without it | change | 95 % |")
    print("|---|---:|---:|---|---:|---:|---|")
    print(f"| nothing / everything | {error(rows, BARE):.4f} | | | {error(rows, 'ridge'):.4f} | | |")
    for name, (_, words) in INGREDIENTS.items():
        alone, without = added(name), removed(name)
        gain, loss = paired(rows, alone, BARE, "mse"), paired(rows, "ridge", without, "mse")
        print(f"| {words} | {error(rows, alone):.4f} | {cells(gain)} | {error(rows, without):.4f} | {cells(loss)} |")


def rate_table(rows: pl.DataFrame) -> None:
    """Rates and errors next to PAML's."""
    minor = rows.filter(pl.col("group") == "minor")
    print("| against PAML | rates of users | MSE | difference | 95 % | minor users: difference | 95 % |")
    print("|---|---|---:|---:|---|---:|---|")
    print(f"| personal rate alpha'(h) (PAML) | {rates(rows, 'paml')} | {error(rows, 'paml'):.4f} | | | | |")
    for name, words in RATES.items():
        print(f"| {words} | {rates(rows, name)} | {error(rows, name):.4f} | {both(rows, minor, name)} |")


def rates(rows: pl.DataFrame, name: str) -> str:
    """The mean over users and seeds, and the spread between users of a seed."""
    by_seed = (
        rows.filter(pl.col("method") == name).group_by("seed").agg(m=pl.col("rate").mean(), s=pl.col("rate").std())
    )
    return f"{by_seed['m'].mean():.3f} ± {by_seed['s'].mean():.3f}"


def error(rows: pl.DataFrame, name: str, metric: str = "mse") -> float:
    """The metric, a mean over users and then over seeds."""
    chosen = rows.filter(pl.col("method") == name)
    return float(chosen.group_by("seed").agg(pl.col(metric).mean())[metric].mean())  # type: ignore[arg-type]


def both(rows: pl.DataFrame, minor: pl.DataFrame, name: str) -> str:
    """The difference from PAML of all users and of minor users."""
    return " | ".join(cells(paired(part, name, "paml", "mse")) for part in (rows, minor))


def cells(found: Paired) -> str:
    """A difference and its interval."""
    assert found.interval is not None
    return f"{found.difference:+.4f} | {found.interval.low:+.4f} to {found.interval.high:+.4f}"


if __name__ == "__main__":
    main()
