"""The tables of tests/conftest.py, with a context field."""

import pytest

import paml
from smalltables import write_tables


@pytest.fixture(scope="session")
def context_world(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    folder = write_tables(tmp_path_factory.mktemp("context") / "tables")
    schema = folder / "schema.toml"
    schema.write_text(
        schema.read_text().replace('time = "when"\n', 'context = { late = { kind = "numeric", column = "when" } }\n')
    )
    return paml.prepare("tables", folder, folder.parent / "data", cold_share=1)
