"""The examples in the docstrings of public names run, in a session with `paml`, a data set and a run."""

import doctest
from pathlib import Path
from typing import Any

import pytest

import paml

PUBLIC = (paml.train, paml.Run, paml.Predictor, paml.User, paml.Rating, paml.NewUser)


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.__name__)
def test_examples_run(
    public: Any, world: paml.Dataset, run: paml.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"paml": paml, "data": world, "run": run}
    found = [test for test in doctest.DocTestFinder().find(public, globs=names) if test.examples]
    assert found, "no example"
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0, test.name
