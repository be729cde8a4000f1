"""What requests cost the model, in units of adapting to a user with few ratings, and which of them are heavy.

Measured with a closed-form ensemble of sixteen on MovieLens-1M's catalogue, where a unit is about 12 ms; how long it
takes in a service is measured while it serves. Heavy work has a thread of its own, so that nobody else waits for it.
"""

from collections.abc import Callable

Cost = Callable[[int], float]
"""Cost of an answer, given the user's number of ratings."""

HEAVY = 10.0


def adapting(ratings: int) -> float:
    """Adapting to a user and scoring all items."""
    return 1 + ratings / 450


def listing(ratings: int) -> float:
    """Choosing the best of items that are scored, or predicting some."""
    return 0.1


def explaining(ratings: int) -> float:
    """Reasons: every rating's effect on every recommended item, in all networks."""
    return 4 + ratings / 120 + ratings**2 / 130_000


def asking(ratings: int) -> float:
    """What to ask next."""
    return 1.5
