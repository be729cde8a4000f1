"""Random changes to a prepared data set: training must refuse them, or nothing that it reads has changed."""

import shutil
from pathlib import Path

import numpy as np

import paml
from benchmarks.attack.cases import Case, arguments, attempt, command, report, watched
from benchmarks.attack.mutate import change_one, linked_copy
from paml.data.integrity import array_types


def content(data: paml.Dataset) -> str:
    """All that a data set holds."""
    arrays = {name: data.array(name).tolist() for name in array_types(data.schema)}
    tables = [frame.collect().to_dicts() for frame in (data.users(), data.items(), data.interactions())]
    return repr([data.manifest, arrays, tables, data.vocabulary])


def prepared(folder: Path, seed: int) -> Case:
    """A data set, and a sibling of it."""
    worlds = [
        paml.prepare("synthetic", out=folder / f"data-{world}", users=60, items=20, world=world) for world in (0, 1)
    ]
    expected = content(worlds[0])

    def trained(path: Path) -> tuple[str, str]:
        data = paml.open_data(path)
        data.verify_once()  # what paml.train and paml.compare begin with
        return "same" if content(data) == expected else "wrong", ""

    def case(number: int) -> tuple[str, str]:
        rng, copy = np.random.default_rng([seed, number]), folder / f"case-{number}"
        files = linked_copy(worlds[0].path, copy)
        what = change_one(copy, files, worlds[1].path, rng) if number else "unchanged"
        kind, text = attempt(lambda: trained(copy), (paml.PamlError,))
        if kind == "refused":  # and without verification: perhaps wrong, but never a traceback
            looked, said = attempt(lambda: command("data", "describe", copy), ())
            kind, text = (looked, said) if looked == "traceback" else (kind, text)
        shutil.rmtree(copy)
        return kind if number or kind == "same" else "wrong", f"{what}: {text}"

    return case


def main() -> None:
    """Change a data set many times."""
    given = arguments(4000)
    report("changed data sets", given.seed, watched("benchmarks.attack.datasets", range(given.count), given.seed))


if __name__ == "__main__":
    main()
