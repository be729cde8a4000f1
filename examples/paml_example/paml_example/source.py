"""A source: users of clans and items of kinds, where each clan likes one kind. A real one would read `request.path`."""

import hashlib

import numpy as np
import polars as pl
from pydantic import Field

from paml.data.schema import Field as Column, Kind, Schema, Target
from paml.data.sources import LoadRequest, RawData, Source
from paml.settings import Settings, build

CLAN_COUNT = 4


class ClanSettings(Settings):
    """Size of the world."""

    members: int = Field(300, gt=0, description="users")
    things: int = Field(60, gt=0, description="items")
    draw: int = Field(0, ge=0, description="seed of the world")


def load(request: LoadRequest) -> RawData:
    """Every user rates 30 items from 1 to 5."""
    settings = build(ClanSettings, request.settings.model_dump())
    rng = np.random.default_rng(settings.draw)
    clan_U, kind_I = (rng.integers(CLAN_COUNT, size=count) for count in (settings.members, settings.things))
    user_N = np.repeat(np.arange(settings.members), 30)
    item_N = np.concatenate([rng.permutation(settings.things)[:30] for _ in range(settings.members)])
    liked_N = 2.5 + 1.5 * (clan_U[user_N] == kind_I[item_N]) + rng.normal(0, 0.7, size=len(user_N))
    rows = {"user": user_N, "item": item_N, "target": liked_N.round().clip(1, 5), "time": np.arange(len(user_N))}
    return RawData(
        schema=Schema(
            target=Target(kind="rating", low=1, high=5),
            user=(Column(name="clan", kind=Kind.CATEGORICAL),),
            item=(Column(name="kind", kind=Kind.CATEGORICAL),),
        ),
        users=pl.LazyFrame({"user": np.arange(settings.members), "clan": clan_U.astype(str)}),
        items=pl.LazyFrame({"item": np.arange(settings.things), "kind": kind_I.astype(str)}),
        interactions=pl.LazyFrame(rows),
        checksum=hashlib.sha256(settings.model_dump_json().encode()).hexdigest(),
    )


CLANS = Source("clans", "users of clans and items of kinds, from a seed", ClanSettings, load, takes=frozenset())
