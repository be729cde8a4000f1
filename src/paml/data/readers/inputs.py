"""Input files: folders and zip archives alike, checksums, and the actual type of a file."""

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
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            what = kind_of(path)
            if what == ZIP or path.suffix.lower() == ".zip":
                remedy = "give a folder or download the archive again"
                raise DataError(f"not a complete zip archive ({error})", where=path, remedy=remedy) from None
            problem = f"is {what or 'a single file'}, not a folder or zip archive"
            raise DataError(problem, where=path, remedy="give the folder that contains it") from None
        self._names = {name for name in self._archive.namelist() if not name.endswith("/")}

    def file(self, name: str) -> Path:
        """Path of the file called `name`: at that relative path, or in the only subfolder that has it."""
        if self._archive is None and (self.path / name).is_file():  # also an absolute path, or one that leads outside
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
    """SHA-256 of the contents of the files, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def kind_of(path: Path) -> str | None:
    """The type of a compressed or Parquet file, by its first bytes; None for other files."""
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
