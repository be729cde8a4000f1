"""Mutation testing: `make mutate`, or `python tests/mutate.py engine/heads methods` for some modules.

mutmut writes every mutant of a module into one file. Here one pytest session collects the tests once, and each mutant
is run in a fork of it: first by the test that killed it last time, then by those that killed its neighbours, then by
all others that call the function, the shortest first. `tests/mutants.toml` says which differences do not count and
which mutants are equivalent. An interrupted run goes on where it was, unless sources or tests have changed.
"""

import argparse
import difflib
import functools
import gc
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
COPY = ROOT / "build" / "mutants"
MODULES = (
    "engine/*.py",
    "methods/*.py",
    "evaluation/metrics.py",
    "analysis/tests.py",
    "analysis/comparisons.py",
    "analysis/fairness.py",
)
TESTS = ("tests/engine", "tests/methods", "tests/evaluation", "tests/analysis", "tests/training/test_paper.py")
LONGEST = 1.5  # seconds of a test; longer ones are statistical simulations and whole trainings
IMPORT = "from mutmut.mutation.trampoline import wrap_in_trampoline as _mutmut_mutated, MutantDict"


class Active:
    """The mutant that runs, as (module, name), and the functions that were called."""

    mutant: tuple[str, str] = ("", "")
    called: set[str] = set()


def trampoline(mutants: dict[str, Callable[..., Any]], is_classmethod: bool = False) -> Callable[..., Any]:
    """Decorates a function that has mutants: calls the active one, or the original."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            original = mutants["_mutmut_orig"]
            Active.called.add(f"{function.__module__}:{original.__name__}")
            module, name = Active.mutant
            chosen = mutants.get(name, original) if module == function.__module__ else original
            return getattr(args[0], chosen.__name__)(*args[1:], **kwargs) if is_classmethod else chosen(*args, **kwargs)

        return call

    return decorate


@dataclass(frozen=True)
class Mutant:
    module: str
    name: str
    function: str
    """As `Active.called` has it."""
    was: str
    becomes: str

    @property
    def label(self) -> str:
        """Function and change: a name that does not depend on other mutants."""
        plain = re.sub(r"^.*:x[_ǁ]|__mutmut_orig$", "", self.function).replace("ǁ", ".")
        return f"{self.module.removeprefix('paml.')}.{plain}: {self.was}  ->  {self.becomes}"


@dataclass
class Rules:
    """What `mutants.toml` says."""

    ignored: list[tuple[re.Pattern[str], str]]
    equivalent: dict[str, str]
    used: set[str]

    @classmethod
    def read(cls) -> "Rules":
        content = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))
        ignored = [(re.compile(rule["difference"]), rule["reason"]) for rule in content["ignored"]]
        return cls(ignored, {one["mutant"]: one["reason"] for one in content.get("equivalent", [])}, set())

    def ignores(self, mutant: Mutant) -> bool:
        """Whether both lines are the same apart from what does not count."""
        return any(rule.sub("", mutant.was) == rule.sub("", mutant.becomes) for rule, _ in self.ignored)

    def is_equivalent(self, mutant: Mutant) -> bool:
        self.used.add(mutant.label)
        return mutant.label in self.equivalent


def copied(paths: Iterable[Path]) -> list[Mutant]:
    """A copy of the project, in which the given modules hold all their mutants."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    for folder in ("src", "tests"):
        shutil.rmtree(COPY / folder, ignore_errors=True)
        shutil.copytree(ROOT / folder, COPY / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", COPY)
    found = []
    for path in paths:
        mutated = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
        code = mutated.code.replace(IMPORT, "from mutate import trampoline as _mutmut_mutated\nMutantDict = dict")
        (COPY / path.relative_to(ROOT)).write_text(code, encoding="utf-8")
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        lines, spans = mutated.code.splitlines(), mutated.line_span_by_function_name

        def text(name: str, lines: list[str] = lines, spans: Any = spans) -> list[str]:
            return [line.strip() for line in lines[spans[name].start - 1 : spans[name].end]]

        for name in mutated.mutant_names:
            original = f"{name.partition('__mutmut')[0]}__mutmut_orig"
            was, becomes = changed(text(original), text(name))
            found.append(Mutant(module, name, f"{module}:{original}", was, becomes))
    return found


def changed(before: list[str], after: list[str]) -> tuple[str, str]:
    """The lines that differ, the line with the function's name aside, unless it alone does."""
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    pairs = [(" ".join(before[a:b]), " ".join(after[c:d])) for tag, a, b, c, d in blocks if tag != "equal"]
    pairs = [(re.sub(r"\w+__mutmut_\w+", "f", was), re.sub(r"\w+__mutmut_\w+", "f", is_)) for was, is_ in pairs]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    return " ".join(was for was, _ in pairs), " ".join(becomes for _, becomes in pairs).replace(", )", ")")


class Loop:
    """A pytest plugin that runs mutants instead of tests."""

    def __init__(self, mutants: list[Mutant], rules: Rules, seconds: float, tests: int, digest: str) -> None:
        self.mutants, self.rules, self.tests_each, self.digest = mutants, rules, tests, digest
        self.deadline = time.monotonic() + seconds
        self.known: dict[str, str] = {}
        self.failed: str | None = None
        self.tests: dict[str, pytest.Item] = {}
        self.cost: dict[str, float] = {}
        self.callers: dict[str, list[str]] = {}
        self.kills: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.tests = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()
        killers = self._resume()
        if not self.cost:
            self._measure()
        for mutant in sorted(self.mutants, key=lambda one: sum(map(self.cost.get, self._tests(one)))):
            if mutant.label in self.known:
                continue
            if time.monotonic() > self.deadline:
                break
            tests = self._ordered(mutant, killers.get(mutant.label))
            killer = self._run(mutant, tests) if tests else ""
            self.known[mutant.label] = killer
            if killer:
                for place in (mutant.function, mutant.module):
                    self.kills.setdefault(place, Counter())[killer] += 1
            with (COPY / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps([self.digest, mutant.label, killer]) + "\n")
        return True

    def _resume(self) -> dict[str, str]:
        """Results of this run so far, and each mutant's last killer."""
        lines = COPY / "results.jsonl"
        killers = {}
        for digest, label, killer in map(json.loads, lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []):
            if killer in self.tests:
                killers[label] = killer
            if digest == self.digest:
                self.known[label] = killer
        measured = COPY / "tests.json"
        if measured.exists():
            digest, self.cost, self.callers = json.loads(measured.read_text(encoding="utf-8"))
            if digest != self.digest:
                self.cost, self.callers = {}, {}
        return killers

    def _measure(self) -> None:
        """Processor time of each test, and the functions it calls, from a run without any mutant."""
        path = COPY / "tests.json"

        def all_tests() -> None:
            cost, callers = {}, {}
            for name, following in pairwise([*self.tests, None]):
                Active.called.clear()
                begin = time.process_time()
                self._one(name, following)
                cost[name] = time.process_time() - begin
                for function in sorted(Active.called):
                    callers.setdefault(function, []).append(name)
            path.write_text(json.dumps([self.digest, cost, callers]), encoding="utf-8")

        failed = self._forked(all_tests, cpu=600)
        if failed:
            sys.exit(f"without any mutant, {failed} fails")
        _, self.cost, self.callers = json.loads(path.read_text(encoding="utf-8"))

    def _tests(self, mutant: Mutant) -> list[str]:
        return [name for name in self.callers.get(mutant.function, []) if self.cost[name] <= LONGEST]

    def _ordered(self, mutant: Mutant, killer: str | None) -> list[str]:
        """Killers first, then one case of every test before the second of any."""
        near, far = (self.kills.get(place, Counter()) for place in (mutant.function, mutant.module))
        case, seen = {}, Counter[str]()
        for name in sorted(self._tests(mutant), key=lambda name: hashlib.md5(name.encode()).digest()):
            case[name] = seen[name.partition("[")[0]]
            seen[name.partition("[")[0]] += 1
        key = {name: (name != killer, -near[name], -far[name], case[name], self.cost[name]) for name in case}
        return sorted(key, key=key.__getitem__)[: self.tests_each]

    def _run(self, mutant: Mutant, tests: list[str]) -> str:
        """The test that killed the mutant; empty if none did."""

        def all_tests() -> None:
            Active.mutant = (mutant.module, mutant.name)
            for name, following in pairwise([*tests, None]):
                self._one(name, following)

        return self._forked(all_tests, cpu=10 + 5 * sum(self.cost[name] for name in tests))

    def _one(self, name: str, following: str | None) -> None:
        item, following_item = self.tests[name], None if following is None else self.tests[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following_item)
        if self.failed:
            sys.exit(1)

    def _forked(self, work: Callable[[], None], cpu: float) -> str:
        """Do the work in a child process; the test that failed in it, or "timeout", or nothing."""
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
            except BaseException as error:  # noqa: BLE001 - the mutant may do anything
                self.failed = self.failed or repr(error)
            finally:
                if code:
                    (folder / "failed").write_text(self.failed or "", encoding="utf-8")
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
        failed = told.read_text(encoding="utf-8") if told.exists() else "" if status == 0 else "timeout"
        shutil.rmtree(folder, ignore_errors=True)
        return failed


def prepare_once(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Synthetic data sets are prepared once for all mutants: no module that is mutated takes part in it."""
    import paml

    @functools.wraps(prepare)
    def remembered(*args: Any, **settings: Any) -> Any:
        if args != ("synthetic",):
            return prepare(*args, **settings)
        del settings["out"]
        kept = COPY / "data" / hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        if not kept.exists():
            part = Path(tempfile.mkdtemp(dir=COPY)) / "data"
            prepare(*args, out=part, **settings)
            kept.parent.mkdir(exist_ok=True)
            part.rename(kept)
        return paml.open_data(kept)

    return remembered


def digest_of(only: Iterable[Path]) -> str:
    """Of what a run depends on."""
    files = [*only, *(ROOT / "tests").rglob("*.py"), *(ROOT / "src").rglob("*.toml")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()[:12]


def report(mutants: list[Mutant], loop: Loop) -> None:
    """Figures by module, then the survivors."""
    rules, count = loop.rules, Counter[tuple[str, str]]()
    survivors = []
    for mutant in mutants:
        killer = loop.known.get(mutant.label)
        kind = "open" if killer is None else "killed" if killer else "survived"
        if kind != "killed" and rules.is_equivalent(mutant):
            kind = "equivalent"
        if kind == "survived":
            survivors.append(mutant.label + ("" if loop._tests(mutant) else "  (no test calls it)"))
        count[mutant.module, kind] += 1
    kinds = ("killed", "survived", "equivalent", "open")
    print(f"\n{'module':32}" + "".join(f"{kind:>12}" for kind in kinds) + f"{'share':>9}")
    for module in [*dict.fromkeys(mutant.module for mutant in mutants), "all"]:
        number = [sum(n for (name, k), n in count.items() if k == kind and module in (name, "all")) for kind in kinds]
        share = number[0] / max(number[0] + number[1], 1)
        print(f"{module:32}" + "".join(f"{n:12}" for n in number) + f"{share:9.1%}")
    print(f"\n{len(survivors)} survivors", *sorted(survivors), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="modules, such as engine/heads; all by default")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time, to go on later")
    parser.add_argument("--tests", type=int, default=1000, help="at most so many per mutant, for a first look")
    asked = parser.parse_args()
    COPY.mkdir(parents=True, exist_ok=True)
    package = ROOT / "src" / "paml"
    paths = [path for pattern in MODULES for path in sorted(package.glob(pattern)) if path.name != "__init__.py"]
    digest = digest_of(paths)
    every = copied(paths)
    rules = Rules.read()
    wanted = [mutant for mutant in every if not asked.only or any(
        mutant.module.replace(".", "/").startswith(f"paml/{one}") for one in asked.only)]
    counted = {mutant.label: mutant for mutant in wanted if not rules.ignores(mutant)}
    print(f"{len(wanted)} mutants, of which {len(wanted) - len(counted)} do not count", flush=True)
    os.chdir(COPY)
    sys.path[:0] = [str(COPY / "src"), str(COPY / "tests")]
    sys.modules["mutate"] = sys.modules[__name__]  # what the mutated code imports
    import paml

    assert Path(paml.__file__).is_relative_to(COPY), paml.__file__
    paml.prepare = prepare_once(paml.prepare)
    loop = Loop(list(counted.values()), rules, asked.seconds, asked.tests, f"{digest} {asked.tests}")
    options = ["-q", "-s", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not slow", "--hypothesis-seed=0", "--tb=no"]
    code = pytest.main([*options, *(name for name in TESTS if (COPY / name).exists())], plugins=[loop])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(int(code))
    report(list(counted.values()), loop)


if __name__ == "__main__":
    main()
