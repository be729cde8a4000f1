"""Mutation testing: `make mutate`, or `python tests/mutate.py engine/heads methods` for some modules.

One pytest session collects the tests once, and each mutant is run in a fork of it: first by the test that killed it
last time, then by those that killed its neighbours, then by all others that call the function. What is known is kept in
build/mutants as long as the sources and tests behind it stay the same.
"""

import argparse
import functools
import gc
import inspect
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mutants import COPY, ROOT, Active, Mutant, Rules, copied, digest, module_of

MODULES = (
    "engine/*.py",
    "methods/*.py",
    "evaluation/metrics.py",
    "analysis/tests.py",
    "analysis/comparisons.py",
    "analysis/fairness.py",
)
NETWORKS = ("tests/engine", "tests/methods", "tests/training/test_paper.py")
STATISTICS = tuple(f"tests/analysis/test_{name}.py" for name in ("hypothesis_tests", "comparisons", "user_values"))
TESTS = {"engine": NETWORKS, "methods": NETWORKS, "evaluation": ("tests/evaluation",), "analysis": STATISTICS}
"""By package; tests mirror packages, and what others notice by chance does not count."""
OPTIONS = ["-qq", "-s", "--tb=no", "-m", "not slow", "--hypothesis-seed=0"]
OPTIONS += [f"-pno:{plugin}" for plugin in ("randomly", "cacheprovider", "faulthandler")]
CRASH = "crash"
LONGEST = 1.5  # seconds of a test; longer ones are statistical simulations and whole trainings


class Loop:
    """A pytest plugin that runs mutants instead of tests."""

    def __init__(self, mutants: list[Mutant], digests: dict[str, str], seconds: float, tests_each: int) -> None:
        """`digests` are those of the modules, by name."""
        self.mutants, self.digests, self.tests_each = mutants, digests, tests_each
        self.deadline = time.monotonic() + seconds
        self.failed: str | None = None
        self.tests: dict[str, pytest.Item] = {}
        self.test_digests: dict[str, str] = {}
        self.cost: dict[str, float] = {}
        self.breadth: dict[str, int] = {}
        self.callers: dict[str, list[str]] = {}
        self.found: dict[str, str] = {}
        """By mutant: the test that killed it, or nothing."""
        self.hints: dict[str, str] = {}
        self.kills: dict[str, Counter[str]] = {}
        self.sound: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.tests = {item.nodeid: item for item in session.items}
        for name, item in self.tests.items():
            self.test_digests[name] = digest(inspect.getsource(item.function))  # type: ignore[attr-defined]
        gc.collect()
        gc.freeze()
        self._measure()
        self._resume()
        for mutant in sorted(self.mutants, key=lambda one: sum(self.cost[name] for name in self._tests(one))):
            if mutant.label in self.found:
                continue
            if time.monotonic() > self.deadline:
                break
            self._test(mutant)
        return True

    def _resume(self) -> None:
        """What is known: a killed mutant stays so while its module and its killer are the same.

        A survivor stays so while its module and the tests that call it are the same.
        """
        (COPY / "results.jsonl").touch()
        lines = (COPY / "results.jsonl").read_text(encoding="utf-8").splitlines()
        mutants = {mutant.label: mutant for mutant in self.mutants}
        for label, module_digest, killer, tests_digest in map(json.loads, lines):
            self.hints[label] = killer
            if label in mutants and module_digest == self.digests[mutants[label].module]:
                if tests_digest == self._digest_of(mutants[label], killer):
                    self.found[label] = killer
                else:
                    self.found.pop(label, None)

    def _digest_of(self, mutant: Mutant, killer: str) -> str:
        """Of what a result depends on: the killer, or all tests."""
        if killer and killer != CRASH:
            return self.test_digests.get(killer, "")
        return digest(*(self.test_digests[name] for name in sorted(self._tests(mutant))), str(self.tests_each))

    def _measure(self) -> None:
        """Processor time of each test, and the functions it calls, from a run without any mutant."""
        path, sources = COPY / "tests.json", digest(*sorted(self.digests.values()))
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        new = [name for name in self.tests if known.get(name, [None])[0] != f"{sources} {self.test_digests[name]}"]

        def new_tests() -> None:
            for name, following in pairwise([*new, None]):
                if time.monotonic() > self.deadline:
                    break
                Active.called.clear()
                begin = time.process_time()
                self._one(name, following)
                cost = time.process_time() - begin
                known[name] = [f"{sources} {self.test_digests[name]}", cost, sorted(Active.called)]
            path.write_text(json.dumps(known), encoding="utf-8")

        if new:
            print(f"measuring {len(new)} tests", flush=True)
            failed = self._forked(new_tests, cpu=900)
            if failed:
                pytest.exit(f"without any mutant, {failed} fails", returncode=1)
            known = json.loads(path.read_text(encoding="utf-8"))
        for name in self.tests.keys() & known.keys():
            _, self.cost[name], called = known[name]
            self.breadth[name] = len(called)
            for function in called:
                self.callers.setdefault(function, []).append(name)

    def _tests(self, mutant: Mutant) -> list[str]:
        return [name for name in self.callers.get(mutant.function, []) if self.cost[name] <= LONGEST]

    def _ordered(self, mutant: Mutant) -> list[str]:
        """The last killer, then those of the neighbours, then those that call little else."""
        near, far = (self.kills.get(place, Counter()) for place in (mutant.function, mutant.module))
        case, seen = {}, Counter[str]()
        for name in sorted(self._tests(mutant), key=digest):
            case[name] = seen[name.partition("[")[0]]
            seen[name.partition("[")[0]] += 1
        hint = self.hints.get(mutant.label)
        key = {name: (name != hint, -near[name], -far[name], self.breadth[name], case[name]) for name in case}
        return sorted(key, key=key.__getitem__)[: self.tests_each]

    def _test(self, mutant: Mutant) -> None:
        tests = self._ordered(mutant)
        killer = self._run(tests, (mutant.module, mutant.name)) if tests else ""
        if killer in self.tests and killer not in self.sound:  # it must pass by itself, or kills mean nothing
            if self._run([killer], ("", "")):
                pytest.exit(f"without any mutant, {killer} fails if it runs alone", returncode=1)
            self.sound.add(killer)
        self.found[mutant.label] = killer
        for place in (mutant.function, mutant.module) if killer else ():
            self.kills.setdefault(place, Counter())[killer] += 1
        line = [mutant.label, self.digests[mutant.module], killer, self._digest_of(mutant, killer)]
        with (COPY / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _run(self, tests: list[str], mutant: tuple[str, str]) -> str:
        """The test that fails first, if any."""

        def all_tests() -> None:
            Active.mutant = mutant
            for name, following in pairwise([*tests, None]):
                self._one(name, following)

        return self._forked(all_tests, cpu=10 + 5 * sum(self.cost[name] for name in tests))

    def _one(self, name: str, following: str | None) -> None:
        item, next_item = self.tests[name], None if following is None else self.tests[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        if self.failed:
            sys.exit(1)

    def _forked(self, work: Callable[[], None], cpu: float) -> str:
        """Do the work in a child process; the test that failed in it, or a crash (also after too long), or nothing."""
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 1))
                quiet = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(quiet, stream)
                factory = next(iter(self.tests.values())).config._tmp_path_factory  # type: ignore[attr-defined]
                factory._basetemp = folder
                work()
                code = 0
            finally:
                if code and self.failed:
                    (folder / "failed").write_text(self.failed, encoding="utf-8")
                os._exit(code)
        status, patience = None, time.monotonic() + 20 * cpu
        while status is None and time.monotonic() < patience:
            found, ended = os.waitpid(child, os.WNOHANG)
            status = ended if found else None
            time.sleep(0.005)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        told = folder / "failed"
        failed = told.read_text(encoding="utf-8") if told.exists() else "" if status == 0 else CRASH
        shutil.rmtree(folder, ignore_errors=True)
        return failed


def prepare_once(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Data sets are prepared once for all mutants: no module that is mutated takes part in it."""
    import paml

    @functools.wraps(prepare)
    def remembered(source: str, path: Path | None = None, out: Path | None = None, **settings: Any) -> Any:
        tables = sorted(path.iterdir()) if path is not None and path.is_dir() else []
        kept = COPY / "data" / digest(source, json.dumps(settings, sort_keys=True, default=str), *tables)
        if not kept.exists():
            part = Path(tempfile.mkdtemp(dir=COPY)) / "data"
            prepare(source, path, part, **settings)
            kept.parent.mkdir(exist_ok=True)
            part.rename(kept)
        return paml.open_data(kept)

    return remembered


def report(mutants: list[Mutant], equivalent: list[Mutant], loop: Loop) -> None:
    """Figures by module, then the survivors."""
    count, survivors = Counter[tuple[str, str]](), []
    for mutant in [*mutants, *equivalent]:
        killer = loop.found.get(mutant.label)
        kind = "open" if killer is None else "killed" if killer else "survived"
        kind = "equivalent" if mutant in equivalent else kind
        count[mutant.module, kind] += 1
        if kind == "survived":
            survivors.append(mutant.label + ("" if loop._tests(mutant) else "  (no test calls it)"))
    kinds = ("killed", "survived", "equivalent", "open")
    print(f"\n{'module':28}" + "".join(f"{kind:>12}" for kind in kinds) + f"{'killed':>9}")
    for module in [*dict.fromkeys(mutant.module for mutant in mutants), "all"]:
        number = [sum(n for (name, k), n in count.items() if k == kind and module in (name, "all")) for kind in kinds]
        share = number[0] / max(number[0] + number[1], 1)
        print(f"{module.removeprefix('paml.'):28}" + "".join(f"{n:12}" for n in number) + f"{share:9.1%}")
    print(f"\n{len(survivors)} survivors", *sorted(survivors), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="modules, such as engine/heads; all by default")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time, to go on later")
    parser.add_argument("--tests", type=int, default=10_000, help="at most so many per mutant, for a first look")
    parser.add_argument("--every", type=int, default=1, help="a random sample: one of so many mutants")
    asked = parser.parse_args()
    COPY.mkdir(parents=True, exist_ok=True)
    package = ROOT / "src" / "paml"
    paths = [path for pattern in MODULES for path in sorted(package.glob(pattern)) if path.name != "__init__.py"]
    made, rules = copied(paths), Rules.read()
    unknown = set(rules.equivalent) - {mutant.label for mutant in made}
    if unknown:
        sys.exit("mutants.toml: no such mutant:\n  " + "\n  ".join(sorted(unknown)))
    wanted = [one for one in made if not asked.only or one.path.startswith(tuple(asked.only))]
    wanted = [one for one in wanted if int(digest(one.label), 16) % asked.every == 0]
    counted = {one.label: one for one in wanted if not rules.ignores(one)}.values()
    print(f"{len(wanted)} mutants, of which {len(wanted) - len(counted)} do not count", flush=True)
    equivalent = [one for one in counted if one.label in rules.equivalent]
    mutants = [one for one in counted if one.label not in rules.equivalent]
    os.chdir(COPY)
    sys.path[:0] = [str(COPY / "src"), str(COPY / "tests")]
    import paml

    assert Path(paml.__file__).is_relative_to(COPY), paml.__file__
    paml.prepare = prepare_once(paml.prepare)
    loop = Loop(mutants, {module_of(path): digest(path) for path in paths}, asked.seconds, asked.tests)
    tests = dict.fromkeys(name for one in mutants for name in TESTS[one.path.partition("/")[0]])
    code = pytest.main([*OPTIONS, *tests], plugins=[loop])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(int(code))
    report(mutants, equivalent, loop)


if __name__ == "__main__":
    main()
