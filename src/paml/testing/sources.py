"""What holds for every source, whoever wrote it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest

from paml.data.dataset import Dataset
from paml.data.prepare import prepare
from paml.data.sources import LoadRequest, RawData, find_source
from paml.settings import build


class SourceSuite:
    """A source by its `name`, with small `settings`; `path` writes its input, if it takes one."""

    name: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    protocol: ClassVar[Mapping[str, Any]] = {}
    """Settings of the protocol that a small input needs, such as `cold_share=1`."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path | None:
        """The input; None for a source that needs none."""
        return None

    def load(self, path: Path | None, workdir: Path) -> RawData:
        """What the source reads."""
        source = find_source(self.name)
        return source.load(LoadRequest(path, build(source.settings, self.settings), workdir))

    def prepare(self, path: Path | None, out: Path) -> Dataset:
        """The prepared data set."""
        return prepare(self.name, path, out, progress=False, settings={**self.settings, **self.protocol})

    def test_tables_are_lazy_and_have_their_keys_and_fields(self, path: Path | None, tmp_path: Path) -> None:
        """Users, items and interactions, with a column for every field of the schema."""
        raw = self.load(path, tmp_path)
        tables = {"user": raw.users, "item": raw.items, "context": raw.interactions}
        for role, table in tables.items():
            assert isinstance(table, pl.LazyFrame), f"the {role} table is not lazy"
            missing = {field.name for field in getattr(raw.schema, role)} - set(table.collect_schema())
            assert not missing, f"the {role} table lacks {sorted(missing)}"
        assert "user" in raw.users.collect_schema()
        assert "item" in raw.items.collect_schema()
        assert {"user", "item", "target"} <= set(raw.interactions.collect_schema())
        assert raw.checksum, "a checksum identifies the input"

    def test_keys_agree_and_targets_lie_on_the_scale(self, path: Path | None, tmp_path: Path) -> None:
        """Every row's user and item is in their table, and in it once."""
        raw = self.load(path, tmp_path)
        rows, target = raw.interactions.collect(), raw.schema.target
        for key, table in (("user", raw.users), ("item", raw.items)):
            keys = table.select(key).collect()[key]
            assert keys.is_unique().all(), f"a {key} is listed twice"
            assert rows[key].is_in(keys.implode()).all(), f"a row's {key} is not in its table"
        assert rows["target"].is_between(target.low, target.high).all(), "a target is off the scale"

    def test_the_same_input_gives_the_same_data_set(self, path: Path | None, tmp_path: Path) -> None:
        """Prepared twice, a data set has the same fingerprint, and its files are as they were written."""
        one, two = (self.prepare(path, tmp_path / name) for name in ("one", "two"))
        assert one.fingerprint == two.fingerprint
        one.verify()
        assert all(end > first for first, end in one.manifest.splits.values()), "a split has no users"
