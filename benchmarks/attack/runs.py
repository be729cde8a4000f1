"""Random changes to a run, in any of its files: opening it must refuse them, or give the answers of before."""

import shutil
from pathlib import Path

import numpy as np

import paml
from benchmarks.attack.cases import Case, arguments, attempt, report, watched
from benchmarks.attack.mutate import change_one, linked_copy

SETTINGS = {"epochs": 1, "ensemble_size": 1, "item_embedding": 4, "choice.item_embedding": 4}


def answers(path: Path) -> str:
    """What people see of a run: what users are told, and how it was trained."""
    run = paml.load(path)
    lines = (path / "metrics.jsonl").read_text()
    return repr([told(run), run.settings, lines, run.predictor.catalogue.search("", 20), run.vocabulary])


def told(run: paml.Run) -> str:
    """What users are told: predictions, lists in every order, rates, questions."""
    said: list[object] = []
    for profile, ratings in (({}, {}), ({"age": "25", "gender": "F"}, {"3": 5.0, "7": 2.0, "11": 4.0})):
        user = run.adapt(profile, ratings)
        said.append([user.predict(item) for item in ("1", "2", "30")])
        said.append([user.recommend(10, by=by) for by in ("rating", "choice", "preference")])
        said += [user.rate_profile(), user.next_question()]
    return repr(said)


def prepared(folder: Path, seed: int) -> Case:
    """A run and a sibling of it: the same schema, other users."""
    paths = []
    for world in (0, 1):
        data = paml.prepare("synthetic", out=folder / f"data-{world}", users=120, items=40, world=world)
        paths.append(paml.train(data, "ridge", out=folder / f"run-{world}", settings=SETTINGS).path)
    expected = answers(paths[0])

    def case(number: int) -> tuple[str, str]:
        rng, copy = np.random.default_rng([seed, number]), folder / f"case-{number}"
        files = linked_copy(paths[0], copy)
        what = change_one(copy, files, paths[1], rng) if number else "unchanged"
        kind, text = attempt(lambda: ("same" if answers(copy) == expected else "wrong", ""), (paml.PamlError,))
        shutil.rmtree(copy)
        return kind if number or kind == "same" else "wrong", f"{what}: {text}"

    return case


def main() -> None:
    """Change a run many times."""
    given = arguments(4000)
    report("changed runs", given.seed, watched("benchmarks.attack.runs", range(given.count), given.seed))


if __name__ == "__main__":
    main()
