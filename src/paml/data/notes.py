"""What people should know about a data set that was prepared: rules that dropped many, keys that do not match."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from paml.data.build import Chosen
from paml.data.dataset import RuleRecord
from paml.data.protocol import SPLITS, Protocol, split_cold_users
from paml.data.sources import RawData

WARNING = "warning: "
LOG_RULE, PROFILE_RULE = "users with log data", "no blank or invalid profile value"


def notes_on(raw: RawData, chosen: Chosen, protocol: Protocol) -> tuple[str, ...]:
    """The source's notes and those on what was kept; the important ones begin with WARNING."""
    return (
        *_many_dropped(chosen.rules),
        *raw.notes,
        *_many_without_profile(raw, chosen.users),
        *_chosen_by_clicks(protocol),
        *_nobody(chosen.users, protocol),
    )


def _many_without_profile(raw: RawData, users: pl.DataFrame) -> list[str]:
    """A note if the users' file has few of the kept users: keys are then often written differently."""
    count = int(users["_without_profile"].sum())
    if "user" not in raw.files or 2 * count <= len(users):
        return []
    file = raw.files["user"]
    return [f"{count:,} of {len(users):,} users have no row in {file}: are keys written as in the interactions?"]


def _many_dropped(rules: Sequence[RuleRecord]) -> list[str]:
    """A warning for each rule that drops more than half of the users it is given, with how to keep them."""
    remedies = {
        PROFILE_RULE: "drop_invalid_profiles=false keeps them, with the blank as 'unknown'",
        LOG_RULE: "are users' keys written as in the interactions?",
    }
    return [
        f"{WARNING}the rule '{one.rule}' dropped {one.dropped:,} of {one.kept + one.dropped:,} users, and kept "
        f"{one.kept:,}; {remedies.get(one.rule, 'the settings of the protocol loosen it')}"
        for one in rules
        if one.dropped > one.kept
    ]


def _nobody(users: pl.DataFrame, protocol: Protocol) -> list[str]:
    """Warnings for validation or test users who were asked for, and of whom there are none."""
    if "_split" in users.columns:
        codes, asked = users["_split"].to_numpy(), "the dates"
    else:
        codes = split_cold_users(users["_training_only"].to_numpy(), protocol.user_ratio, protocol.seed)
        asked = "user_ratio"
    counts = np.bincount(codes, minlength=len(SPLITS))
    wanted = [protocol.user_ratio[k] > 0 for k in range(len(SPLITS))]
    if protocol.split == "time":
        wanted = [True, wanted[1] or protocol.validation_from is not None, wanted[2] or protocol.test_from is not None]
    purpose = {"validation": "settings are chosen and training ends without them", "test": "nothing is evaluated"}
    return [
        f"{WARNING}there are no {name} users ({asked} of {len(users):,} users): {purpose[name]}"
        for name, count, is_wanted in zip(SPLITS, counts, wanted, strict=True)
        if name in purpose and is_wanted and not count
    ]


def _chosen_by_clicks(protocol: Protocol) -> list[str]:
    """A note on what the paper's rule for clicks does to query rows."""
    if protocol.min_counts != "clicks":
        return []
    least = protocol.min_interactions
    known = "one click" if least == 2 else f"fewer than {least} clicks"
    return [
        f"{WARNING}min_counts=clicks, the paper's rule, chooses users by their query rows, too: whoever has {known} "
        "among the support rows is certain to have one among the query rows, which is not so for new users; "
        "min_counts=rows does not look at clicks"
    ]
