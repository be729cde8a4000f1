"""The default method on rating data that its settings were not chosen on, against LensKit and item + user bias.

    python -m benchmarks.defaults FOLDER [OUT] [seeds=3]     FOLDER holds ml-1m.zip and BX-CSV-Dump.zip

Four data sets: a random third of MovieLens-1M's users as one's own tables, with and without profiles; the users of
Book-Crossing with ten or more ratings, as tables, too; and an embedded world with other users, items and tastes.
Nothing is tuned here but what `paml compare` tunes on each data set's validation users: when training ends, and the
baselines' settings. Only errors are compared, so there is no choice part. An unfinished OUT is continued.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import torch

import paml
from paml.analysis.comparisons import Paired, paired
from paml.data.schema import Field, Kind
from paml.data.sources import LoadRequest, RawData, find_source
from paml.progress import for_terminal
from paml.settings import parse_assignments

METHOD = "ridge"
BASELINES = ("bias", "lenskit_mf", "lenskit_knn")
SHOTS = ("1", "5", "all")
SEEDS = 3
DRAW = 2026  # seed of the third of the users
MIN_RATINGS = 10
OTHER_WORLD = {"world": 11, "users": 1500, "items": 800, "median_rows": 16, "minor_spread": 3}
SIGNIFICANT = 0.05


def main() -> None:
    """Build the data sets, fit what is missing, and print the table."""
    settings = parse_assignments(text for text in sys.argv[1:] if "=" in text)
    folder, *rest = [Path(text) for text in sys.argv[1:] if "=" not in text]
    out = rest[0] if rest else Path("paml-defaults")
    torch.set_num_threads(1)
    print("| data set | known ratings | default | bias | LensKit MF | LensKit k-NN | against the best of them |")
    print("|---|---|---:|---:|---:|---:|---|", flush=True)
    for name, data in data_sets(folder, out / "data"):
        seeds, compared = int(settings.get("seeds", SEEDS)), out / name.replace(",", "").replace(" ", "-")
        shown = for_terminal()
        paml.compare(data, [METHOD], seeds, out=compared, baselines=BASELINES, progress=shown, choice_part=False)
        print_lines(name, compared)


def data_sets(folder: Path, out: Path) -> Iterator[tuple[str, paml.Dataset]]:
    """Names and data sets; those that are there already are opened."""
    third = "a third of MovieLens-1M"
    yield third, tables("ml-1m", folder / "ml-1m.zip", out / "third")
    yield f"{third}, no profiles", tables("ml-1m", folder / "ml-1m.zip", out / "third-bare", profiles=False)
    yield "Book-Crossing, ten ratings", tables("bookcrossing", folder / "BX-CSV-Dump.zip", out / "books")
    world = out / "world"
    opened = paml.open_data(world) if world.exists() else paml.prepare("synthetic", out=world, settings=OTHER_WORLD)
    yield "another embedded world", opened


def tables(source: str, archive: Path, out: Path, *, profiles: bool = True) -> paml.Dataset:
    """Some users of a source as somebody's own tables, prepared with the defaults for such.

    Users with blank profile values are dropped, as they were when the stored results were measured.
    """
    if out.exists():
        return paml.open_data(out)
    kind = find_source(source)
    with TemporaryDirectory() as work:
        raw = kind.load(LoadRequest(archive, kind.settings(), Path(work)))
        folder = write_tables(raw, chosen_users(source, raw), Path(work) / "tables", profiles=profiles)
        return paml.prepare("tables", folder, out, drop_invalid_profiles=True)


def chosen_users(source: str, raw: RawData) -> pl.Series:
    """A random third of MovieLens' users, or the readers with enough ratings."""
    counts = raw.interactions.group_by("user").len().sort("user").collect()
    if source == "ml-1m":
        return counts["user"].gather(np.sort(np.random.default_rng(DRAW).permutation(len(counts))[: len(counts) // 3]))
    return counts.filter(pl.col("len") >= MIN_RATINGS)["user"]


def write_tables(raw: RawData, users: pl.Series, folder: Path, *, profiles: bool) -> Path:
    """CSV files and a schema, as `paml data prepare tables` reads them."""
    folder.mkdir()
    chosen = pl.LazyFrame({"user": users})
    people = raw.users.join(chosen, on="user", how="semi").collect()
    items = raw.items.with_row_index("number")  # some of Book-Crossing's keys differ only in white space
    rows = raw.interactions.join(chosen, on="user", how="semi").join(items.select("item", "number"), on="item")
    rows = rows.select("user", item="number", rating="target").collect()
    items = items.drop("item").rename({"number": "item"}).collect()
    rows.write_csv(folder / "ratings.csv")
    parts = [("items", "item", items, raw.schema.item), *([("users", "user", people, raw.schema.user)] * profiles)]
    target = raw.schema.target
    text = f'[target]\nkind = "rating"\nlow = {target.low:g}\nhigh = {target.high:g}\n\n'
    text += '[interactions]\nfile = "ratings.csv"\nuser = "user"\nitem = "item"\ntarget = "rating"\n'
    for name, key, table, fields in parts:
        joined = [pl.col(field.name).list.join("|") for field in fields if field.kind is Kind.MULTI]
        table.select(key, *(field.name for field in fields)).with_columns(joined).write_csv(folder / f"{name}.csv")
        text += f'\n[{name}]\nfile = "{name}.csv"\nkey = "{key}"\n[{name}.fields]\n'
        text += "".join(f"{field.name} = {described(field)}\n" for field in fields)
    (folder / "schema.toml").write_text(text)
    return folder


def described(field: Field) -> str:
    """A field as a line of a schema file."""
    limits = {"minimum": field.minimum, "maximum": field.maximum}
    known = "".join(f", {name} = {value:g}" for name, value in limits.items() if value is not None)
    return f'{{ kind = "{field.kind.value}"{known} }}'


def print_lines(name: str, folder: Path) -> None:
    """A line for each number of known ratings."""
    scenarios = pl.read_parquet(folder / "scenarios.parquet").filter(pl.col("scenario") == "shots")
    for shots in SHOTS:
        known = scenarios.filter(pl.col("value") == shots)
        errors = {entry: error(known, entry) for entry in (METHOD, *BASELINES)}
        best = min(BASELINES, key=errors.__getitem__)
        cells = " | ".join(f"{value:.4f}" for value in errors.values())
        print(
            f"| {name} | {shots} | {cells} | {verdict(paired(known, METHOD, best, 'mse'), errors[best])} |", flush=True
        )


def error(rows: pl.DataFrame, entry: str) -> float:
    """The mean over seeds of the mean over users."""
    by_seed = rows.filter(pl.col("method") == entry).group_by("seed").agg(pl.col("mse").mean())
    return float(by_seed["mse"].to_numpy().mean())


def verdict(found: Paired, reference: float) -> str:
    """The difference in per cent, its interval, and whether it is more than chance."""
    assert found.difference is not None
    assert found.interval is not None
    low, high = (100 * end / reference for end in (found.interval.low, found.interval.high))
    p = found.t_p
    words = "" if p is None or p < SIGNIFICANT else ", not significant"
    return f"{100 * found.difference / reference:+.1f} % ({low:+.1f} to {high:+.1f}{words})"


if __name__ == "__main__":
    main()
