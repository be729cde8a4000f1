"""Mutants of some modules, made by mutmut: a copy of the project whose functions can be switched to any of them.

`mutants.toml` says which differences do not count and which mutants are equivalent; `mutate.py` runs them.
"""

import difflib
import functools
import hashlib
import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).parent.parent
COPY = ROOT / "build" / "mutants"
IMPORT = "from mutmut.mutation.trampoline import wrap_in_trampoline as _mutmut_mutated, MutantDict"


class Active:
    """The mutant that runs, as (module, name), and the functions that were called."""

    mutant: tuple[str, str] = ("", "")
    called: ClassVar[set[str]] = set()


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
    def path(self) -> str:
        """Such as engine/heads.py."""
        return self.module.removeprefix("paml.").replace(".", "/") + ".py"

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
    """Reasons, by label."""

    @classmethod
    def read(cls) -> "Rules":
        content = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))
        ignored = [(re.compile(rule["difference"]), rule["reason"]) for rule in content["ignored"]]
        return cls(ignored, {label: one["reason"] for one in content["equivalent"] for label in one["mutants"]})

    def ignores(self, mutant: Mutant) -> bool:
        """Whether both lines are the same apart from what does not count, or a value just became None."""
        if len(re.findall(r"\bNone\b", mutant.becomes)) > len(re.findall(r"\bNone\b", mutant.was)):
            return True
        return any(rule.sub("", mutant.was) == rule.sub("", mutant.becomes) for rule, _ in self.ignored)


def copied(paths: Iterable[Path]) -> list[Mutant]:
    """A copy of the project, in which the given modules hold all their mutants."""
    for folder in ("src", "tests"):
        shutil.rmtree(COPY / folder, ignore_errors=True)
        shutil.copytree(ROOT / folder, COPY / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", COPY)
    found = []
    for path in paths:
        made = COPY / "made" / f"{module_of(path)}-{digest(path)}.json"
        if not made.exists():
            made.parent.mkdir(exist_ok=True)
            made.write_text(json.dumps(mutated(path)), encoding="utf-8")
        code, mutants = json.loads(made.read_text(encoding="utf-8"))
        (COPY / path.relative_to(ROOT)).write_text(code, encoding="utf-8")
        found += [Mutant(*mutant) for mutant in mutants]
    return found


def mutated(path: Path) -> tuple[str, list[tuple[str, ...]]]:
    """The code of a module with all its mutants, and these."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    made, module = mutate_file_contents(str(path), path.read_text(encoding="utf-8")), module_of(path)
    lines, spans, found = made.code.splitlines(), made.line_span_by_function_name, []

    def text(name: str) -> list[str]:
        return [line.strip() for line in lines[spans[name].start - 1 : spans[name].end]]

    for name in made.mutant_names:
        original = f"{name.partition('__mutmut')[0]}__mutmut_orig"
        found.append((module, name, f"{module}:{original}", *changed(text(original), text(name))))
    own = "from mutants import trampoline as _mutmut_mutated\nMutantDict = dict"
    return made.code.replace(IMPORT, own), found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


def changed(before: list[str], after: list[str]) -> tuple[str, str]:
    """The lines that differ, the line with the function's name aside, unless it alone does."""
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    pairs = [(" ".join(before[a:b]), " ".join(after[c:d])) for tag, a, b, c, d in blocks if tag != "equal"]
    pairs = [(re.sub(r"\w+__mutmut_\w+", "f", was), re.sub(r"\w+__mutmut_\w+", "f", is_)) for was, is_ in pairs]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    return " ".join(was for was, _ in pairs), " ".join(becomes for _, becomes in pairs).replace(", )", ")")


def digest(*parts: str | Path) -> str:
    texts = [part.read_text(encoding="utf-8") if isinstance(part, Path) else part for part in parts]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
