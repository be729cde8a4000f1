"""Ali_Display_Ad_Click (Tianchi): 26 million ad impressions from Taobao, similar to the paper's production data.

`raw_sample.csv` has the impressions and clicks, `user_profile.csv` the profiles, `ad_feature.csv` the ads. The archive
is behind a registration, so it is given as `path`.
"""

import polars as pl
from pydantic import Field as Described

from paml.data.readers.delimited import Column
from paml.data.readers.reader import TableReader
from paml.data.readers.text import Dialect
from paml.data.schema import Field, Kind, Schema, Target
from paml.data.sources.base import LoadRequest, RawData
from paml.settings import Settings

PAGE = "https://tianchi.aliyun.com/dataset/56"
PROFILE = (
    *("cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level", "occupation"),
    "new_user_class_level",
)
CONTENT = {"category": "cate_id", "brand": "brand", "campaign": "campaign_id", "customer": "customer"}
KEY, TEXT = pl.Int64(), pl.String()


class TaobaoSettings(Settings):
    """Settings of the source `taobao`."""

    rate_strength: float = Described(
        20.0, gt=0, description="average impressions that smoothing adds to an ad's click rate"
    )
    rare_values: int = Described(
        5, ge=1, description="categories, brands, campaigns and customers seen less often in training are 'unknown'"
    )


def load(request: LoadRequest) -> RawData:
    """Impressions with clicks, profiles, and ads with category, brand, price and click rates of training users."""
    reader = TableReader(request)
    folder = reader.folder()
    dialect = Dialect(quote=None, blanks=("NULL",))
    log = {
        "user": Column("user", KEY, required=True),
        "item": Column("adgroup_id", KEY, required=True),
        "target": Column("clk", pl.Float64(), required=True, low=0, high=1, step=1),
        "time": Column("time_stamp", KEY, required=True),
        "position": Column("pid", TEXT),
    }
    interactions = reader.read("interactions", folder.file("raw_sample.csv"), log, dialect)
    profile = {"user": Column("userid", KEY, required=True), **{name: Column(name, TEXT) for name in PROFILE}}
    users = reader.read("user", folder.file("user_profile.csv"), profile, dialect)
    content = {name: Column(column, TEXT) for name, column in CONTENT.items()}
    ad = {"item": Column("adgroup_id", KEY, required=True), **content, "price": Column("price", pl.Float64())}
    items = reader.read("item", folder.file("ad_feature.csv"), ad, dialect)
    items = items.with_columns(pl.when(pl.col("price") >= 0).then("price"))
    items = items.with_columns(log_price=pl.col("price").log1p())
    assert isinstance(request.settings, TaobaoSettings)
    return reader.raw(_schema(request.settings), interactions, users, items)


def _schema(settings: TaobaoSettings) -> Schema:
    user = tuple(Field(name=name, kind=Kind.CATEGORICAL) for name in PROFILE)
    content = (Field(name=name, kind=Kind.CATEGORICAL, min_count=settings.rare_values) for name in CONTENT)
    prices = (Field(name=name, kind=Kind.NUMERIC) for name in ("price", "log_price"))
    rates = (
        Field(name=name, kind=Kind.NUMERIC, derived=derived, strength=settings.rate_strength)
        for name, derived in (("ctr", "rate"), ("log_ctr", "log_rate"))
    )
    position = Field(name="position", kind=Kind.CATEGORICAL)
    target = Target(kind="click")
    return Schema(user=user, item=(*content, *prices, *rates), context=(position,), target=target)
