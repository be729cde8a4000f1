"""A run in a notebook."""

import json
from typing import TYPE_CHECKING, Any

from paml.evaluation.metrics import headline
from paml.notebook import card, curve, table

if TYPE_CHECKING:
    from paml.training.run import Run

METRICS, PREFIX = "metrics.jsonl", "validation_"


def run_html(run: "Run") -> str:
    """What was trained on what, how it ended, and the validation curve."""
    settings = run.settings
    summary, target = settings.summary, settings.data_schema.target.kind
    parts = [*([f"{target}s"] if run.rater is not None else []), *(["choice"] if run.chooser is not None else [])]
    rows = [
        ("method", settings.method),
        ("predicts", " and ".join(parts)),
        ("recipe", f"{settings.recipe_name}, seed {settings.seed}"),
        ("members", settings.recipe.ensemble_size),
        ("items", f"{settings.items:,}"),
        ("epochs", _epochs(summary)),
        ("seconds", f"{summary.get('seconds', 0.0):.1f}"),
        ("data", f"{settings.fingerprint[:12]}, {settings.data_path}"),
        ("folder", run.path),
    ]
    return card("Run", table(rows), _validation(run))


def _epochs(summary: dict[str, Any]) -> str:
    """How many, and which is the best if any two were compared."""
    count = str(summary.get("epochs", 0))
    return count if summary.get("best_validation") is None else f"{count}, the best is {summary['best_epoch']}"


def _validation(run: "Run") -> str:
    """The validation metric by epoch; nothing if there were no validation users, or the file is gone."""
    file = run.path / METRICS
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    name = next((key for line in lines for key in line if key.startswith(PREFIX)), None)
    values = [None if name is None else line.get(name) for line in lines]
    if not any(value is not None for value in values):
        return ""
    best = run.settings.summary.get("best_epoch", 0) - 1
    plain, judged = str(name).removeprefix(PREFIX), headline(run.settings.data_schema.target.kind)
    label = judged.label if plain == judged.name else plain.replace("_", " ")
    return curve(values, best, ("epoch 1", f"{len(values)}"), f"{label} of validation users")
