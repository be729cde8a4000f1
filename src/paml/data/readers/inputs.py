"""Input files: folders and zip archives alike, checksums, and the actual type of a file.

An archive may come from anybody: what it unpacks to is bounded by its own size and by the disk, names that occur twice
are refused, and only files that are asked for are unpacked, under names of our own choice.
"""

import hashlib
import lzma
import posixpath
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

from paml.errors import DataError, nearest

MAX_RATIO = 200
"""A file in an archive unpacks to at most this many times its packed size, if it is large: text reaches about 20."""
LARGE = 1 << 28
MAX_HOLLOW = 1000
"""A large file has at most this many bytes for each that the disk holds; file systems that compress reach about 50."""
MIN_FREE = 1 << 28  # bytes of the disk that unpacking leaves free
ZIP, PARQUET = "a zip archive", "a Parquet file"
MAGIC = {
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstandard file",
    b"PK\x03\x04": ZIP,
    b"PAR1": PARQUET,
}


class InputFolder:
    """Files by name, from a folder or from a zip archive (unpacked into `workdir` on demand).

    Without `search`, a name is a path relative to the folder: subfolders are not searched.
    """

    def __init__(self, path: Path, workdir: Path, *, search: bool = True) -> None:
        if not path.exists():
            raise DataError("no such file or folder", where=path, remedy="check its name", argument="path")
        self.path, self._workdir = path, workdir
        self._archive: zipfile.ZipFile | None = None
        self._unpacked: dict[str, Path] = {}
        if path.is_dir():
            files = path.rglob("*") if search else path.iterdir()
            self._names = {str(file.relative_to(path)) for file in files if file.is_file()}
            return
        if not path.is_file():
            raise DataError("is neither a folder nor a regular file", where=path, remedy="give one", argument="path")
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError, struct.error, EOFError) as error:
            what = kind_of(path)
            if what == ZIP or path.suffix.lower() == ".zip":
                remedy = "give a folder or download the archive again"
                raise DataError(f"not a complete zip archive ({error})", where=path, remedy=remedy) from None
            problem = f"is {what or 'a single file'}, not a folder or zip archive"
            raise DataError(problem, where=path, remedy="give the folder that contains it") from None
        names = [posixpath.normpath(name) for name in self._archive.namelist() if not name.endswith("/")]
        self._names = set(names)
        if len(self._names) < len(names):
            twice = next(name for name in sorted(names) if names.count(name) > 1)
            remedy = "write the archive again: it is not clear which of them is meant"
            raise DataError(f"has the file '{twice[:60]}' twice", where=path, remedy=remedy)

    def file(self, name: str) -> Path:
        """Path of the file called `name`: at that relative path, or in the only subfolder that has it."""
        if self._archive is None and (self.path / name).is_file():  # also an absolute path, or one that leads outside
            return self.path / name
        if self._archive is None and parquet_files(self.path / name):  # a table in many files
            return self.path / name
        name = posixpath.normpath(name)  # ./ratings.csv is ratings.csv
        found = sorted(entry for entry in self._names if entry == name or entry.endswith(f"/{name}"))
        if not found:
            have = {entry.rsplit("/", 1)[-1] for entry in self._names}
            raise DataError(
                f"has no file '{name}'", where=self.path, remedy=nearest(name, have) if have else "it is empty"
            )
        if name not in found and len(found) > 1:
            several = ", ".join(found[:3])
            raise DataError(
                f"has several files '{name}' ({several})", where=self.path, remedy="give one of the folders"
            )
        entry = name if name in found else found[0]
        if self._archive is None:
            return self.path / entry
        if entry not in self._unpacked:
            self._unpacked[entry] = self._unpack(self._archive, entry)
        return self._unpacked[entry]

    def first_of(self, *names: str) -> Path:
        """The first of several possible files that exists; if none does, the error names the first."""
        present = {entry.rsplit("/", 1)[-1] for entry in self._names}
        return self.file(next((name for name in names if name in present), names[0]))

    def _unpack(self, archive: zipfile.ZipFile, entry: str) -> Path:
        info = next(one for one in archive.infolist() if posixpath.normpath(one.filename) == entry)
        self._require_room(info)
        folder = self._workdir / f"{len(list(self._workdir.iterdir()))}-unpacked"
        folder.mkdir()
        target = folder / entry.rsplit("/", 1)[-1]
        try:
            with archive.open(info) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError, ValueError) as error:
            raise DataError(
                f"'{entry}' cannot be unpacked ({error})", where=self.path, remedy="download the archive again"
            ) from None
        return target

    def _require_room(self, info: zipfile.ZipInfo) -> None:
        """Refuse a file that would fill the disk, or that unpacks to far more than data ever does."""
        size, what = info.file_size, f"'{info.filename[:60]}' would unpack to {info.file_size:,} bytes"
        if size > LARGE and size > MAX_RATIO * max(info.compress_size, 1):
            remedy = "unpack it by hand if you trust it, and give the folder"
            what += f", {size / max(info.compress_size, 1):,.0f} times its packed size"
            raise DataError(what, where=self.path, remedy=remedy)
        free = shutil.disk_usage(self._workdir).free
        if size > free - MIN_FREE:
            raise DataError(f"{what}, and the disk has {free:,}", where=self.path, remedy="make room")


def parquet_files(path: Path) -> list[Path]:
    """The files of a table that is a folder of Parquet files, as Spark and DuckDB write it; of anything else, none.

    Names that begin with `_` or `.` are notes of whoever wrote them, and no data.
    """
    if not path.is_dir():
        return []
    found = (file for file in path.rglob("*.parquet") if file.is_file())
    return sorted(file for file in found if not any(part[0] in "_." for part in file.relative_to(path).parts))


def checksum(*paths: Path) -> str:
    """SHA-256 of the contents of the files, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def kind_of(path: Path) -> str | None:
    """The type of a compressed or Parquet file, by its first bytes; None for other files.

    A folder of Parquet files is one Parquet table.
    """
    if path.is_dir():
        return PARQUET if parquet_files(path) else None
    with path.open("rb") as file:
        head = file.read(4)
    return next((what for magic, what in MAGIC.items() if head.startswith(magic)), None)


def require_text(path: Path) -> None:
    """Refuse compressed files where text is expected, and files of holes, which would take hours to read."""
    state = path.stat()
    on_disk = 512 * getattr(state, "st_blocks", state.st_size)
    if state.st_size > LARGE and state.st_size > MAX_HOLLOW * max(on_disk, 1):
        problem = f"has {state.st_size:,} bytes, of which the disk holds {on_disk:,}"
        raise DataError(problem, where=path.name, remedy="write it again: it was never filled")
    if what := kind_of(path):
        raise DataError(f"is {what}, not text", where=path.name, remedy="unpack it first")


def file_called(path: Path, name: str, workdir: Path) -> Path:
    """The file itself, or the one called `name` in a folder or zip archive."""
    if path.is_file() and not zipfile.is_zipfile(path):
        return path
    return InputFolder(path, workdir).file(name)
