"""Run every benchmark at a size that takes minutes; `python -m benchmarks NAME ...` runs some of them.

Results go to the terminal and, dated, to benchmarks/results/.
"""

import contextlib
import datetime
import importlib
import io
import platform
import sys
from pathlib import Path

NAMES = [
    "batches",
    "engine",
    "factors",
    "memory_search",
    "growth",
    "sources",
    "store",
    "predictor",
    "catalogue",
    "serve",
    "questions",
    "ranking",
    "jobs",
    "prepare",
    "ranks",
    "slopes",
]


class Tee(io.StringIO):
    """Keeps what is printed, and shows it."""

    def write(self, text: str) -> int:
        """Write to both."""
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return super().write(text)


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        with contextlib.redirect_stdout(Tee()) as output:
            print(f"# {name}, {datetime.date.today()}, {platform.machine()}, Python {platform.python_version()}")
            importlib.import_module(f"benchmarks.{name}").main()
        (results / f"{datetime.date.today()}-{name}.txt").write_text(output.getvalue())


if __name__ == "__main__":
    main()
