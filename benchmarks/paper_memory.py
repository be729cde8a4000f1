"""Peak private memory of training with recipe `paper`, each method in a process of its own.

    python -m benchmarks.paper_memory DATA [METHOD ...]      a prepared data set, such as MovieLens-1M

The paper prints 2.12 GB for AT-PAML and 669 MB for PAML and REG-PAML on MovieLens, without saying what was measured; on
a graphics card that usually includes what driver and allocator hold. Two epochs: AT-PAML fills its memory in the
first, and uses it in the second.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.growth import train_apart
from paml.methods.registry import methods_of

PAPER = {"paml": "669 MB", "reg_paml": "669 MB", "at_paml": "2.12 GB"}


def main() -> None:
    """A line per method."""
    data = Path(sys.argv[1])
    print("| method | peak private memory, MB | after imports, MB | training adds, MB | the paper |")
    print("|---|---:|---:|---:|---:|")
    with TemporaryDirectory() as folder:
        for method in sys.argv[2:] or methods_of("paper"):
            found = train_apart(data, method, Path(folder) / method, {"epochs": 2})
            peak, imported = (1.048576 * found[name] for name in ("peak_mib", "imported_mib"))
            print(f"| {method} | {peak:.0f} | {imported:.0f} | {peak - imported:.0f} | {PAPER.get(method, '–')} |")


if __name__ == "__main__":
    main()
