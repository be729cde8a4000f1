"""What a search may change: ranges of settings, for the lines of the table of methods.

A space is a visible dict, setting -> range; the settings are those of recipes.
"""

from dataclasses import dataclass

Choice = str | int | float | bool


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log` for settings whose order of magnitude matters."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Among:
    """One of a few values."""

    choices: tuple[Choice, ...]


Space = dict[str, Range | Among]

COMMON: Space = {
    "outer_rate": Range(1e-4, 3e-2, log=True),
    "weight_decay": Range(1e-7, 1e-1, log=True),
    "batch_size": Among((16, 32, 64, 128)),
    "embedding_scale": Range(1e-2, 1.0, log=True),
    "item_embedding": Among((8, 16, 32)),
}
GRADIENT: Space = {"inner_steps": Range(1, 5)}
FIXED_RATE: Space = GRADIENT | {"inner_rate": Range(1e-3, 1.0, log=True)}
PERSONAL_RATE: Space = GRADIENT | {"rate_scale": Range(1e-3, 1.0, log=True)}
MEMORY: Space = {
    "kernel_delta": Range(0.05, 10.0, log=True),
    "neighbours": Range(5, 50),
    "neighbours_inference": Range(3, 50),
    "warmup_rate": Range(1e-3, 1.0, log=True),
}
