"""Reading the files of one request: what every file-based source needs, whatever its formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from paml.data.readers.delimited import Column, read_table
from paml.data.readers.inputs import InputFolder, checksum, parquet_files
from paml.data.readers.text import Dialect
from paml.data.schema import Schema
from paml.data.sources.base import LoadRequest, RawData
from paml.errors import SettingsError


class TableReader:
    """Reads tables with the request's options, and records which files were read and which lines were skipped."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._paths: list[Path] = []
        self._files: dict[str, str] = {}
        self._bad: dict[Path, pl.Series] = {}

    @property
    def workdir(self) -> Path:
        """A folder for temporary files."""
        return self._request.workdir

    def folder(self) -> InputFolder:
        """The folder or archive that was given."""
        if self._request.path is None:
            raise SettingsError("no folder or archive is given", remedy="give the path of one", argument="path")
        return InputFolder(self._request.path, self._request.workdir)

    def read(self, role: str, path: Path, columns: Mapping[str, Column], dialect: Dialect) -> pl.LazyFrame:
        """A table's columns; `role` is `interactions`, `user`, `item`, or another use of the table."""
        self.count_in(path)
        self._files[role] = path.name
        request = self._request
        with request.progress.step(f"reading {path.name}"):
            table = read_table(path, columns, dialect, request.workdir, skip_bad_lines=request.skip_bad_lines)
        before = self._bad.get(path)  # one wide file may be read for several roles: count a bad line once
        self._bad[path] = table.bad if before is None else pl.concat([before, table.bad]).unique()
        return table.frame

    def count_in(self, path: Path) -> None:
        """Include the content of a file, or of all files of a table, in the checksum."""
        self._paths += [file for file in parquet_files(path) or [path] if file not in self._paths]

    def raw(
        self, schema: Schema, interactions: pl.LazyFrame, users: pl.LazyFrame, items: pl.LazyFrame, **more: Any
    ) -> RawData:
        """The three tables with everything known about their origin."""
        return RawData(
            schema=schema,
            users=users,
            items=items,
            interactions=interactions,
            checksum=checksum(*self._paths),
            bad_lines=sum(map(len, self._bad.values())),
            files=self._files,
            **more,
        )
