"""The settings of a preparation as keyword arguments, for editors and type checkers; written by a program."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class PrepareSettings(TypedDict, total=False):
    """Settings of the sources and of the protocol; `users` and `items` are arguments of `prepare` itself."""

    seed: int
    """Seed of the user split and of the support/query split."""
    cold_share: float
    """Share of users to keep, those with the least log data."""
    cold_rule: Literal["first", "last"]
    """Choose those users before the other rules on users (first), or among the users these keep (last)."""
    active_users: Literal["drop", "train"]
    """The other users, those with the most log data: drop them, or let them train (neither validate nor test)."""
    drop_invalid_profiles: bool
    """Drop users with a blank or invalid profile value."""
    min_interactions: int
    """Drop users with fewer rows, or clicks (see min_counts)."""
    min_counts: Literal["rows", "clicks"]
    """What min_interactions counts: rows, or clicks (the paper's rule, which reads query labels)."""
    user_ratio: Sequence[float] | str
    """Users in train:validation:test."""
    split: Literal["random", "time"]
    """Random users validate and test, or those who first appear after a date (time)."""
    validation_from: str | None
    """split=time: whoever first appears from then on is no training user; by default as user_ratio says."""
    test_from: str | None
    """split=time: whoever first appears from then on is a test user."""
    support_share: float
    """Share of a user's rows in the support set."""
    support_rounding: Literal["nearest", "down"]
    """Round the number of support rows to the nearest whole number, or down."""
    support_by: Literal["random", "time"]
    """Random rows as support set, or the user's earliest rows (time)."""
    support_first: int | None
    """A user's first rows in time, this many, are the support set, instead of support_share."""
    support_days: float | None
    """A user's rows of this many days, from the first one on, are the support set."""
    new_items: str | float
    """Share of items that are held out of training, or 'time': those that first appear from validation_from on."""
    common_share: float
    """Share of a field's values, the most frequent ones, that count as common."""
    major_above: int
    """A user with more common values than this is a major user."""
    target: Literal["rating", "click", "choice"]
    """Ratings from 1 to 5, clicks, or choices (positives only)."""
    median_rows: float
    """Median number of interactions per user."""
    world: int
    """Seed of the world itself; `seed` is the seed of the splits."""
    minor_distance: float
    """How far rare profile values move tastes; at 0 no farther than common ones."""
    minor_spread: float
    """Personal part of minor users' tastes relative to that of major users."""
    zip_prefix: int
    """Leading characters of the zip code to use as input (3: region); 0: all."""
    reading: Literal["log", "paper"]
    """Log: users by the letter of the rules; paper: the reading nearest to the paper's numbers (docs/data.md)."""
    rate_strength: float
    """Average impressions that smoothing adds to an ad's click rate."""
    rare_values: int
    """Categories, brands, campaigns and customers seen less often in training are 'unknown'."""
