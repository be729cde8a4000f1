"""Input files: a folder or a zip archive as one thing, checksums, and what a file really is."""

import hashlib
import lzma
import posixpath
import shutil
import zipfile
import zlib
from pathlib import Path

from paml.errors import DataError, nearest

ZIP, PARQUET = "a zip archive", "a Parquet file"
MAGIC = {
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstandard file",
    b"PK\x03\x04": ZIP,
    b"PAR1": PARQUET,
}


class InputFolder:
    """Files by name, from a folder or from a zip archive (unpacked into `workdir` when asked for).

    Without `search`, a name is a path from the folder and nothing else: folders below are not looked into.
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
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            what = kind_of(path)
            if what == ZIP or path.suffix.lower() == ".zip":
                remedy = "give a folder or download the archive again"
                raise DataError(f"not a complete zip archive ({error})", where=path, remedy=remedy) from None
            problem = f"is {what or 'a single file'}, not a folder or zip archive"
            raise DataError(problem, where=path, remedy="give the folder it lies in") from None
        self._names = {name for name in self._archive.namelist() if not name.endswith("/")}

    def file(self, name: str) -> Path:
        """Path of the file called `name`: at that path from here, or in the only folder that has it."""
        if self._archive is None and (self.path / name).is_file():  # an absolute path, too, or one that leads out
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
        """The first of several possible files that is there; the error is about the first name."""
        present = {entry.rsplit("/", 1)[-1] for entry in self._names}
        return self.file(next((name for name in names if name in present), names[0]))

    def _unpack(self, archive: zipfile.ZipFile, entry: str) -> Path:
        folder = self._workdir / f"{len(list(self._workdir.iterdir()))}-unpacked"
        folder.mkdir()
        target = folder / entry.rsplit("/", 1)[-1]
        try:
            with archive.open(entry) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError) as error:
            raise DataError(
                f"'{entry}' cannot be unpacked ({error})", where=self.path, remedy="download the archive again"
            ) from None
        return target


def checksum(*paths: Path) -> str:
    """SHA-256 over the contents of files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def kind_of(path: Path) -> str | None:
    """What a file is if it is compressed or Parquet, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((what for magic, what in MAGIC.items() if head.startswith(magic)), None)


def require_text(path: Path) -> None:
    """Refuse compressed files where text is expected."""
    if what := kind_of(path):
        raise DataError(f"is {what}, not text", where=path.name, remedy="unpack it first")


def file_called(path: Path, name: str, workdir: Path) -> Path:
    """The file itself, or the one called `name` in a folder or zip archive."""
    if path.is_file() and not zipfile.is_zipfile(path):
        return path
    return InputFolder(path, workdir).file(name)
