"""Real data for tests: only where `PAML_DATA_HOME` names a folder that holds it."""

import os
from pathlib import Path

import pytest


def real_file(name: str) -> Path:
    """A file of the data folder; the test is skipped where there is none."""
    home = os.environ.get("PAML_DATA_HOME")
    if not home or not (Path(home) / name).exists():
        pytest.skip(f"needs {name} in the folder that PAML_DATA_HOME names")
    return Path(home) / name
