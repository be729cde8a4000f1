"""Files written whole or not at all: under a temporary name first, then renamed."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paml.errors import PamlError


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path` only when the `with` block ends without an error."""
    if os.path.lexists(path):
        raise PamlError("already exists", where=path, remedy="choose another --out, or remove it first")
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    except OSError as error:
        raise PamlError(f"cannot be written ({error.strerror})", where=path, remedy="choose another --out") from None
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:  # the innermost first; one that somebody else filled meanwhile stays
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it over `path`."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
