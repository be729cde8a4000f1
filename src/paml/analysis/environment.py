"""With what a comparison was computed, as `environment.json` holds it: recorded when cells are fitted."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from paml.errors import FormatError
from paml.files import write_text
from paml.settings import Settings

FILE = "environment.json"


class Environment(Settings):
    """Versions, and the machine as far as it matters."""

    python: str
    platform: str
    threads: int
    packages: dict[str, str]
    """Name -> version; packages that were not installed are absent."""

    def __str__(self) -> str:
        """In a line."""
        versions = [f"{name} {version}" for name, version in self.packages.items()]
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return ", ".join([f"Python {self.python}", *versions, self.platform, threads])


_ENVIRONMENTS = TypeAdapter(tuple[Environment, ...])


def read_environments(folder: Path) -> tuple[Environment, ...]:
    """The environments in which the cells of a comparison were fitted, the first first; none where not recorded."""
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        return _ENVIRONMENTS.validate_json(path.read_bytes())
    except ValidationError:
        remedy = "remove it: the report then does not say with what it was computed"
        raise FormatError("is not a list of environments", where=path, remedy=remedy) from None


def write_environments(folder: Path, environments: tuple[Environment, ...]) -> None:
    """Store them, atomically."""
    write_text(folder / FILE, _ENVIRONMENTS.dump_json(environments, indent=1).decode() + "\n")
