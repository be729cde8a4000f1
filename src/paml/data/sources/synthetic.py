"""An embedded data set: a small world generated from a seed, in a rating, a click and a choice version.

Profiles are skewed (a few common values, a long tail); a user's taste is the sum of the contributions of the profile's
values and a personal part, and rare values contribute larger vectors, so that unusual profiles have unusual tastes.
Two dials say how unlike minor users are: in what their profiles tell about their tastes, and in what only they know.
Items differ in quality and popularity, and users tend to interact with items they like. Ratings and clicks are drawn
with known noise: the best reachable error is known, and is recorded for the query rows of the test users. Choices are
the rows of the rating version that are rated 4 or 5, without the ratings.

Legend: U users of a chunk, I items, D taste dimensions, N interactions of a chunk.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field as Described

from paml.data.schema import CLICK_WEIGHTS, Field, Kind, Schema, Target, TargetKind
from paml.data.sources.base import LoadRequest, RawData
from paml.settings import Settings, added

TASTE_DIMENSIONS = 8
PERSONAL_SD = 0.45  # of the personal part of a taste, in each dimension
CELLS_PER_CHUNK = 4_000_000  # users x items held at once: about 100 MB of working memory
TINY = np.finfo(np.float32).tiny
INVALID_PROFILES = 0.015  # share of users with a blank or impossible profile value
RATING_NOISE = 0.75
CHOSEN = 4  # ratings from here on are choices
CLICK_SKEW = (
    0.47  # values' shares are raised to this power: with six fields, about 71 % are major users, as in the paper
)
CLICK_SHIFT = -4.0  # of the logits: about one row in six is clicked

AGES = {"25": 0.35, "35": 0.20, "18": 0.18, "45": 0.09, "50": 0.08, "56": 0.06, "12": 0.04}
WIDE_FIELDS = {"occupation": 21, "zip": 200, "state": 40, "country": 12}  # number of values, Zipf-distributed
RATING_PROFILE = ("gender", "age", "occupation", "zip")
CLICK_PROFILE = (*RATING_PROFILE, "state", "country")
CLICK_COLUMNS = ("ctr", "cvr", "price", "logctr", "logcvr", "logprice", "ctrcvr", "cvrprice", "ctrcvrprice")
GENRES = (
    *("action", "adventure", "animation", "biography", "comedy", "crime", "documentary", "drama", "family"),
    *("fantasy", "history", "horror", "musical", "mystery", "romance", "thriller", "war", "western"),
)


class SyntheticSettings(Settings):
    """Size and kind of the world."""

    users: int = Described(2000, ge=10, description="number of users")
    items: int = Described(500, ge=20, description="number of items")
    target: TargetKind = Described("rating", description="ratings from 1 to 5, clicks, or choices (positives only)")
    median_rows: float = Described(28.0, ge=2, le=1e6, description="median number of interactions per user")
    world: int = Described(0, ge=0, description="seed of the world itself; `seed` is the seed of the splits")
    minor_distance: float = added(
        1.0, "how far rare profile values move tastes; at 0 no farther than common ones", ge=0, le=100
    )
    minor_spread: float = added(
        1.0, "personal part of minor users' tastes relative to that of major users", gt=0, le=100
    )


@dataclass(frozen=True)
class _World:
    """Everything that exists before users are drawn."""

    values: dict[str, list[str]]
    chances: dict[str, np.ndarray]
    tastes: dict[str, np.ndarray]
    """Per profile field: the taste vector and bias that each value contributes, (values, D + 1)."""
    item_taste_ID: np.ndarray
    quality_I: np.ndarray
    log_popularity_I: np.ndarray
    items: pl.DataFrame


def load(request: LoadRequest) -> RawData:
    """Generate the world and write its users to `workdir`, chunk by chunk, in bounded memory."""
    settings = request.settings
    assert isinstance(settings, SyntheticSettings)
    clicks = settings.target == "click"
    world = _make_world(settings, np.random.default_rng([settings.world, 0]))
    chunk = max(1, CELLS_PER_CHUNK // settings.items)
    files: dict[str, list[Path]] = {"users": [], "interactions": []}
    with request.progress.step("drawing users", settings.users) as step:
        for number, start in enumerate(range(0, settings.users, chunk)):
            count = min(chunk, settings.users - start)
            rng = np.random.default_rng([settings.world, 1, number])
            for name, table in _draw_users(world, settings, start, count, rng).items():
                files[name].append(request.workdir / f"{name}-{number:05d}.parquet")
                table.write_parquet(files[name][-1], compression="lz4")
            step.advance(count)
    interactions, best = pl.scan_parquet(files["interactions"], glob=False), "best_nel" if clicks else "best_mse"
    if settings.target == "choice":
        interactions = interactions.filter(pl.col("target") >= CHOSEN).with_columns(target=pl.lit(1, pl.Float32))
    return RawData(
        schema=_schema(settings.target),
        users=pl.scan_parquet(files["users"], glob=False),
        items=world.items.lazy(),
        interactions=interactions,
        checksum=f"synthetic-{2 if clicks else 1} {settings.model_dump_json()}",
        best=None if settings.target == "choice" else best,
    )


def _schema(kind: TargetKind) -> Schema:
    limits: dict[str, dict[str, Any]] = {"age": {"minimum": 10, "maximum": 100}}
    clicks = kind == "click"
    profile = CLICK_PROFILE if clicks else RATING_PROFILE
    user = tuple(Field(name=name, kind=Kind.CATEGORICAL, **limits.get(name, {})) for name in profile)
    title = Field(name="title", kind=Kind.IDENTIFIER)
    if clicks:
        numbers = tuple(Field(name=name, kind=Kind.NUMERIC) for name in CLICK_COLUMNS)
        return Schema(user=user, item=(title, *numbers), target=Target(kind="click"))
    content = (Field(name="genre", kind=Kind.MULTI), Field(name="director", kind=Kind.CATEGORICAL))
    year = Field(name="year", kind=Kind.NUMERIC)
    target = Target(kind="choice") if kind == "choice" else Target(kind="rating", low=1, high=5)
    return Schema(user=user, item=(title, *content, year), target=target)


def _make_world(settings: SyntheticSettings, rng: np.random.Generator) -> _World:
    values: dict[str, list[str]] = {"gender": ["M", "F"], "age": list(AGES)}
    chances: dict[str, np.ndarray] = {"gender": np.array([0.7, 0.3]), "age": np.array(list(AGES.values()))}
    for name, size in WIDE_FIELDS.items():
        values[name] = [f"{name}-{k:03d}" for k in range(size)]
        chances[name] = (weights := 1.0 / np.arange(1, size + 1)) / weights.sum()
    if settings.target == "click":
        chances = {name: (flat := share**CLICK_SKEW) / flat.sum() for name, share in chances.items()}
    profile = CLICK_PROFILE if settings.target == "click" else RATING_PROFILE
    tastes = {}
    for name in profile:
        rarity = 1.0 - chances[name] / chances[name].max()  # 0 for the most common value, towards 1 for rare ones
        strength = 0.1 + 0.3 * settings.minor_distance * rarity
        tastes[name] = rng.normal(size=(len(rarity), TASTE_DIMENSIONS + 1)) * strength[:, None]
    quality_I = rng.normal(size=settings.items)
    rank_I = np.empty(settings.items)
    rank_I[np.argsort(-quality_I - rng.normal(scale=1.5, size=settings.items))] = np.arange(1, settings.items + 1)
    make_items = _click_items if settings.target == "click" else _rating_items
    item_taste_ID, items = make_items(settings.items, quality_I, rng)
    return _World(values, chances, tastes, item_taste_ID, 0.45 * quality_I, -0.8 * np.log(rank_I), items)


def _rating_items(count: int, quality_I: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, pl.DataFrame]:
    """Items whose taste vector is made of genres, director and a part of their own."""
    genre_chances = (weights := 1.0 / np.arange(1, len(GENRES) + 1) ** 0.7) / weights.sum()
    genre_GD = rng.normal(size=(len(GENRES), TASTE_DIMENSIONS))
    directors = max(2, count // 4)
    director_KD = rng.normal(size=(directors, TASTE_DIMENSIONS))
    # One to three genres each: the first ranks of a random order, weighted by how common a genre is.
    order_IG = np.argsort(rng.exponential(size=(count, len(GENRES))) / genre_chances, axis=1)
    member_IG = np.argsort(order_IG, axis=1) < rng.choice([1, 2, 3], p=[0.5, 0.35, 0.15], size=(count, 1))
    director_I = np.minimum(rng.exponential(directors / 3, size=count).astype(int), directors - 1)
    own_ID = rng.normal(size=(count, TASTE_DIMENSIONS))
    genre_ID = member_IG @ genre_GD / np.sqrt(member_IG.sum(axis=1, keepdims=True))
    taste_ID = (genre_ID + 0.6 * director_KD[director_I] + 0.5 * own_ID) / np.sqrt(TASTE_DIMENSIONS * 1.61)
    items = pl.DataFrame(
        {
            "item": np.arange(count, dtype=np.uint32),
            "title": [f"Film {k + 1}" for k in range(count)],
            "genre": [[GENRES[g] for g in np.flatnonzero(row)] for row in member_IG],
            "director": [f"Director {k + 1}" for k in director_I],
            "year": np.round(2000 - rng.exponential(15, size=count) + 2 * quality_I),
        }
    )
    return taste_ID, items


def _click_items(count: int, quality_I: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, pl.DataFrame]:
    """Items described by the nine numeric columns of the paper's production set; taste is a function of them."""
    from scipy.special import expit  # slow to import, and no other source needs it

    conversion_I, expense_I = rng.normal(size=count), rng.normal(size=count)
    ctr, cvr, price = expit(0.6 * quality_I - 1.6), expit(0.8 * conversion_I - 2.5), np.exp(0.9 * expense_I + 3)
    hidden_I3 = np.stack([quality_I, conversion_I, expense_I], axis=1)
    bent_ID = np.tanh(hidden_I3 @ rng.normal(size=(3, TASTE_DIMENSIONS)) + rng.normal(size=TASTE_DIMENSIONS))
    taste_ID = (1.3 * bent_ID + 0.4 * rng.normal(size=bent_ID.shape)) / np.sqrt(TASTE_DIMENSIONS)
    columns = (ctr, cvr, price, np.log(ctr), np.log(cvr), np.log(price), ctr * cvr, cvr * price, ctr * cvr * price)
    keys = {"item": np.arange(count, dtype=np.uint32), "title": [f"Offer {k + 1}" for k in range(count)]}
    return taste_ID, pl.DataFrame({**keys, **dict(zip(CLICK_COLUMNS, columns, strict=True))})


def _draw_users(
    world: _World, settings: SyntheticSettings, start: int, count: int, rng: np.random.Generator
) -> dict[str, pl.DataFrame]:
    """One chunk: profiles, and interactions with each row's best reachable loss."""
    codes = {name: rng.choice(len(world.values[name]), size=count, p=world.chances[name]) for name in world.tastes}
    taste_UD1: np.ndarray = rng.normal(scale=PERSONAL_SD, size=(count, TASTE_DIMENSIONS + 1))
    taste_UD1 *= settings.minor_spread ** np.where(_is_minor(codes, world), 0.5, -0.5)[:, None]
    for name, table in world.tastes.items():
        taste_UD1 += table[codes[name]]
    appeal_UI = np.asarray(taste_UD1[:, :-1] @ world.item_taste_ID.T, dtype=np.float32)
    row, item = _draw_choices(appeal_UI, world.log_popularity_I, settings.median_rows, rng)
    mean_N = world.quality_I[item] + 0.7 * taste_UD1[row, -1] + 1.2 * appeal_UI[row, item]
    if settings.target == "click":
        target_N, floor_N = _draw_clicks(2.0 * mean_N + CLICK_SHIFT, rng)
    else:
        target_N, floor_N = _draw_ratings(mean_N + 3.25, rng)
    begin_U = 1_500_000_000 + rng.integers(0, 100_000_000, size=count)
    interactions = pl.DataFrame(
        {
            "user": (row + start).astype(np.uint32),
            "item": item.astype(np.uint32),
            "target": target_N.astype(np.float32),
            "time": begin_U[row] + rng.integers(0, 10_000_000, size=len(row)),
            "_best": floor_N.astype(np.float32),
        }
    )
    return {"users": _profiles(world, codes, start, count, rng), "interactions": interactions}


def _is_minor(codes: dict[str, np.ndarray], world: _World) -> np.ndarray:
    """Users with at most two common values, by the chances of values (the protocol counts users), (U)."""
    common_UF = [
        codes[name] < (1 if (size := len(world.values[name])) == 2 else math.ceil(0.3 * size)) for name in codes
    ]
    minor_U: np.ndarray = np.sum(common_UF, axis=0) <= 2
    return minor_U


def _draw_choices(
    appeal_UI: np.ndarray, log_popularity_I: np.ndarray, median_rows: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Which items users interact with: distinct, drawn with weights popularity * exp(appeal / 2) (Gumbel top-k)."""
    count, items = appeal_UI.shape
    rows_U = np.clip(rng.lognormal(np.log(median_rows), 0.8, size=(count,)).astype(int), 1, items // 2)
    key_UI = log_popularity_I.astype(np.float32) + 0.5 * appeal_UI
    key_UI -= np.log(np.maximum(rng.standard_exponential(size=key_UI.shape, dtype=np.float32), TINY))
    order_UI = np.argsort(-key_UI, axis=1)
    chosen_UI = np.zeros(key_UI.shape, dtype=bool)
    np.put_along_axis(chosen_UI, order_UI, np.arange(items) < rows_U[:, None], axis=1)
    row, item = np.nonzero(chosen_UI)
    return row, item


def _draw_ratings(mean_N: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Ratings clip(round(mean + noise), 1, 5), and their variance given the mean: the best reachable squared error."""
    from scipy.special import ndtr  # slow to import, and no other source needs it

    rating_N = np.clip(np.rint(mean_N + rng.normal(scale=RATING_NOISE, size=mean_N.shape)), 1, 5)
    expected_N, square_N = np.ones_like(mean_N), np.ones_like(mean_N)
    for level in (1, 2, 3, 4):
        above_N = ndtr((mean_N - level - 0.5) / RATING_NOISE)  # P(rating > level)
        expected_N += above_N
        square_N += (2 * level + 1) * above_N
    return rating_N, square_N - expected_N**2


def _draw_clicks(logit_N: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Clicks with probability p, and the expected weighted entropy loss of its best prediction.

    With weights w1 (clicked) and w0 the loss -w log p'(label) is smallest at p' = w1 p / (w1 p + w0 (1 - p)).
    """
    from scipy.special import expit  # slow to import, and no other source needs it

    p_N = expit(logit_N)
    w0, w1 = CLICK_WEIGHTS
    best_N = w1 * p_N / (w1 * p_N + w0 * (1 - p_N))
    floor_N = -(w1 * p_N * np.log(best_N) + w0 * (1 - p_N) * np.log1p(-best_N))
    return (rng.random(size=p_N.shape) < p_N).astype(np.float32), floor_N


def _profiles(
    world: _World, codes: dict[str, np.ndarray], start: int, count: int, rng: np.random.Generator
) -> pl.DataFrame:
    """The profile table; a few users have a blank field or an impossible age."""
    names = {name: pl.Series(world.values[name])[codes[name]] for name in codes}
    users = pl.DataFrame({"user": np.arange(start, start + count, dtype=np.uint32), **names})
    slip = pl.Series(rng.random(count))
    blank, invalid = slip < INVALID_PROFILES / 2, (slip >= INVALID_PROFILES / 2) & (slip < INVALID_PROFILES)
    return users.with_columns(
        occupation=pl.when(blank).then(None).otherwise(pl.col("occupation")),
        age=pl.when(invalid).then(pl.lit("5")).otherwise(pl.col("age")),
    )
