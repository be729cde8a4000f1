"""Cases run in a process of their own, which is watched: an answer in time and in bounded memory, or it counts."""

import argparse
import importlib
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

GOOD = ("refused", "same")
"""How a case may end: an error in words, or the result as if nothing had been changed."""
MAX_MEMORY = 6 << 30
PATIENCE = 60.0
"""Seconds that a case may take: far more than any needs, also beside other work."""
Case = Callable[[int], tuple[str, str]]
"""From the number of a case to how it ended (`refused`, `same`, `wrong` or `traceback`) and what was said."""


@dataclass(frozen=True)
class Ended:
    """How a case ended."""

    number: int
    kind: str
    text: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether that is how it should end."""
        return self.kind in GOOD


def attempt(action: Callable[[], tuple[str, str]], refusals: tuple[type[BaseException], ...]) -> tuple[str, str]:
    """The result of an action; errors that are made for people are a refusal, and all others a traceback."""
    try:
        return action()
    except refusals as error:
        return "refused", str(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "traceback", "".join(traceback.format_exception(error)[-3:])


def command(*arguments: object) -> tuple[str, str]:
    """A command of paml in this process: refused with code 1 and a line that begins with `error:`."""
    import contextlib
    import io

    from paml.cli import main

    output, errors, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["paml", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            main()
    except SystemExit as ended:
        said = errors.getvalue()
        if ended.code in (0, None):
            return "same", output.getvalue()
        if ended.code == 1 and any(line.startswith("error:") for line in said.splitlines()):
            return "refused", said
        return "traceback", f"exit code {ended.code}: {said}"
    finally:
        sys.argv = before
    return "same", output.getvalue()


def _work(module: str, seed: int, folder: str, pipe: Connection) -> None:
    """The process of the cases: it prepares what they need, then answers one number after the other."""
    case: Case = importlib.import_module(module).prepared(Path(folder), seed)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    pipe.send("ready")
    while (number := pipe.recv()) is not None:
        pipe.send(case(number))


def watched(module: str, numbers: Iterable[int], seed: int, patience: float = PATIENCE) -> list[Ended]:
    """Run cases of a module (its `prepared(folder, seed)` returns a Case); to hang or to die is an outcome, too."""
    context = multiprocessing.get_context("spawn")
    found: list[Ended] = []
    waiting = list(reversed(list(numbers)))
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as name:
        attempts = 0
        while waiting:
            ours, theirs = context.Pipe()
            folder = Path(name) / str(attempts)
            folder.mkdir()
            process = context.Process(target=_work, args=(module, seed, str(folder), theirs), daemon=True)
            process.start()
            theirs.close()
            attempts += 1
            assert ours.recv() == "ready"
            while waiting:
                number, started = waiting.pop(), time.perf_counter()
                try:
                    ours.send(number)
                    kind, text = ours.recv() if ours.poll(patience) else ("hang", f"no answer in {patience:.0f} s")
                except EOFError:
                    kind, text = "crash", "the process ended"
                except KeyboardInterrupt:  # what is done so far is reported
                    print(f"stopped at case {number}")
                    process.kill()
                    return found
                found.append(Ended(number, kind, text, time.perf_counter() - started))
                if kind in ("hang", "crash"):
                    break
            else:
                ours.send(None)
            if process.is_alive() and waiting:
                process.kill()
            process.join(10)
            shutil.rmtree(folder, ignore_errors=True)
    return found


def arguments(count: int) -> argparse.Namespace:
    """`--count` and `--seed` of a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    return parser.parse_args()


def report(title: str, seed: int, found: Iterable[Ended]) -> None:
    """Print how the cases ended; exit with 1 if one ended as it should not."""
    found = list(found)
    kinds = Counter(ended.kind for ended in found)
    slowest = max((ended.seconds for ended in found), default=0.0)
    told = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("refused", "same", "wrong", "traceback", "hang", "crash"))
    print(f"{title}: {len(found):,} cases, seed {seed}: {told}; the slowest took {slowest:.1f} s")
    bad = [ended for ended in found if not ended.is_good]
    for ended in bad[:20]:
        print(f"  case {ended.number}: {ended.kind}: {ended.text}")
    sys.exit(bool(bad))
