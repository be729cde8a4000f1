"""Users and recommendations in a notebook."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paml.notebook import BLUE, ORANGE, bars, card, table
from paml.recommend.explain import Reason

if TYPE_CHECKING:
    from paml.recommend.user import Recommendation, User

MAX_RATINGS = 8


def user_html(user: "User") -> str:
    """What is known about a user, and the user's own rate among those of training users."""
    catalogue, known = user.predictor.catalogue, user.new_user
    profile = list(known.profile.items())
    ratings = [(f"{rating.value:g}", catalogue.title(rating.item)) for rating in known.ratings[:MAX_RATINGS]]
    more = len(known.ratings) - len(ratings)
    rest = [("", f"and {more:,} more")] if more else []
    facts = [("group", user.group or "not known"), (user.predictor.rate_label, f"{user.rate:.4g}")]
    unknown = [("not known to the model", ", ".join(user.unknown))] if user.unknown else []
    parts = [table([*profile, *facts, *unknown])]
    if ratings:
        parts.append(table([*ratings, *rest], ("rating", "item"), (0,)))
    return card(f"User with {len(known.ratings):,} ratings", *parts, _rates(user))


def _rates(user: "User") -> str:
    """Rates of training users, by group, and where this user's is."""
    profile = user.rate_profile()
    low, high = profile.edges[0], profile.edges[-1]
    parts = [("major users", profile.major, BLUE), ("minor users", profile.minor, ORANGE)]
    place = (profile.rate - low) / (high - low)
    said = "all have the same" if profile.equal else f"above {profile.percentile:.0f} % of them"
    ends, about = (f"{low:.3g}", f"{high:.3g}"), f"{user.predictor.rate_label} of training users; {said}"
    return bars([part for part in parts if sum(part[1])], ends, about, (place, "this user"))


def recommendations_html(found: Sequence["Recommendation"], reasons: Sequence[Sequence[Reason]] | None) -> str:
    """The list, with what is known of each item and, if asked for, why it stands there."""
    columns = [("item", [one.item for one in found]), ("title", [one.title for one in found])]
    columns.append(("score", [f"{one.score:.3f}" for one in found]))
    if any(one.rating is not None and one.rating != one.score for one in found):
        columns.append(("rating", [f"{one.rating:.2f}" for one in found]))
    if any(one.chance is not None for one in found):
        columns.append(("chance", [f"{one.chance:.1%}" for one in found]))
    numbers = list(range(3, 1 + len(columns)))
    if reasons is not None:
        columns.append(("because", ["; ".join(map(_because, one)) for one in reasons]))
    rows = zip(range(1, 1 + len(found)), *(values for _, values in columns), strict=True)
    return card(f"{len(found)} recommendations", table(rows, ("", *(name for name, _ in columns)), numbers))


def _because(reason: Reason) -> str:
    return f"{reason.title} ({reason.value:g}): {reason.effect:+.3f}"
