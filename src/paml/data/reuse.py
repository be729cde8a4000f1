"""A data set that is there already, for a call that would make the same one.

Settings are compared before anything is read. Then the input is read again: if it is the same, byte by byte, so is the
data set; if it is not, it may still say the same (a table written in another format), which preparing it shows.
"""

import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paml.data.dataset import Dataset
from paml.data.protocol import Protocol
from paml.data.sources import RawData
from paml.data.time_split import dated
from paml.data.time_unit import in_seconds
from paml.errors import InUse, SettingsError
from paml.locks import hold
from paml.settings import require_same

if TYPE_CHECKING:
    from paml.data.prepare import Preparation

AN_HOUR = 3600.0
DATES = {"validation_from", "test_from"}
"""Settings that the log may decide."""


def reused(target: Path, wanted: "Preparation") -> Dataset:
    """The data set in a folder, if it is the one that is wanted; a SettingsError says what differs."""
    found = Dataset.open(target)
    require_same(_given(found), _asked(wanted), target, "prepared")
    with _workplace(target) as work:
        raw = wanted.load(_new(work, "raw"))
        if not _is_same_input(found, wanted, raw):
            again = _new(work, "data")
            wanted.write(raw, again)
            _require_equal(found, Dataset.open(again))
    return found


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """A folder for temporary files beside the data set; what calls that were killed have left there is removed."""
    prefix = f".{target.name}.again-"
    work = target.with_name(f"{prefix}{secrets.token_hex(4)}")
    with hold(_lock_of(work), target, "comparing with it"):  # before the folder is there
        for other in target.parent.iterdir():
            is_old = other.name.startswith(prefix) and other.is_dir() and time.time() - other.stat().st_mtime > AN_HOUR
            with suppress(InUse):
                if is_old:
                    with hold(_lock_of(other), other, "removing it"):
                        shutil.rmtree(other, ignore_errors=True)
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _lock_of(work: Path) -> Path:
    return work.with_name(f"{work.name}.lock")


def _new(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def _is_same_input(found: Dataset, wanted: "Preparation", raw: RawData) -> bool:
    """Whether the same version has read the same files, and cut them at the same dates."""
    now, before, protocol = wanted.record(raw), found.manifest.source, wanted.protocol
    if (now.checksum, now.bad_lines) != (before.checksum, before.bad_lines):
        return False
    if protocol.split == "time":
        protocol = dated(*in_seconds(raw, protocol))
    return protocol == found.manifest.protocol and found.manifest.created_by == f"paml {version('paml')}"


def _require_equal(found: Dataset, now: Dataset) -> None:
    """Raise a SettingsError unless both hold the same rows."""
    if found.fingerprint == now.fingerprint:
        return
    before, after = ({name: getattr(data.manifest.protocol, name) for name in DATES} for data in (found, now))
    require_same(before, after, found.path, "prepared")
    sizes, sizes_now = _sizes(found), _sizes(now)
    prints = f"{found.fingerprint[:12]}, now {now.fingerprint[:12]}"
    differ = f"{sizes}; now {sizes_now}" if sizes != sizes_now else f"of the same size, but with fingerprint {prints}"
    remedy = "give the data that it was prepared from, choose another folder, or remove it first"
    raise SettingsError(f"was prepared from other data ({differ})", where=found.path, remedy=remedy, argument="out")


def _sizes(data: Dataset) -> str:
    return f"{data.manifest.users:,} users, {data.manifest.items:,} items, {data.manifest.interactions:,} rows"


def _asked(wanted: "Preparation") -> Mapping[str, Any]:
    return _named(wanted.kind.name, wanted.settings.model_dump(mode="json"), wanted.protocol)


def _given(found: Dataset) -> Mapping[str, Any]:
    return _named(found.manifest.source.name, found.manifest.source.settings, found.manifest.protocol)


def _named(source: str, settings: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    return {"source": source, **settings, **protocol.model_dump(mode="json", exclude=DATES)}
