"""torchrun starts a job again after a rank was lost: it goes on with the run that it has begun, and with no other.

RUN/.job names the job that has begun the run, or gone on with it. A job that was refused when it started is refused
again when it is restarted: what is in the folder is somebody else's.
"""

import os
from pathlib import Path

from paml.errors import FormatError
from paml.files import read_bounded, write_text
from paml.training.ranks import Ranks

FILE = ".job"
MAX_NAME = 1000


def was_restarted(ranks: Ranks) -> bool:
    """Whether torchrun has started these ranks again; machines count differently, so one of them is enough."""
    return any(ranks.gather_objects(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0))


def began(folder: Path) -> bool:
    """Whether the run in this folder is of this job."""
    try:
        return bool(_job()) and read_bounded(folder / FILE, "remove it", MAX_NAME).decode(errors="replace") == _job()
    except FormatError:  # nobody's
        return False


def note(folder: Path) -> None:
    """Say in a folder that this job is at work there; without torchrun, there is no job."""
    if _job():
        write_text(folder / FILE, _job())


def forget(folder: Path) -> None:
    """A job that has only just started has begun nothing: it was an earlier one of the same name."""
    (folder / FILE).unlink(missing_ok=True)


def _job() -> str:
    return os.environ.get("TORCHELASTIC_RUN_ID", "")
