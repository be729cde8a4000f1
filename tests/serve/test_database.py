"""Under the store: addresses, files, and versions of the tables."""

import sqlite3
import stat
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from paml.errors import FormatError, PamlError, SettingsError
from paml.serve.store.api_keys import digest_of
from paml.serve.store.database import Database, file_url
from paml.serve.store.migrations import STEPS, migrate
from paml.serve.store.schema import metadata
from paml.serve.store.store import Store
from serve.test_store import rated, values_of


def test_tables_are_as_the_queries_name_them(store: Store, url: str) -> None:
    engine = create_engine(url)
    found = inspect(engine)
    for table in metadata.sorted_tables:
        assert {column["name"] for column in found.get_columns(table.name)} == {column.name for column in table.columns}
        assert found.get_pk_constraint(table.name)["constrained_columns"] == [
            column.name for column in table.primary_key
        ]
    engine.dispose()


def test_a_next_step_is_applied_once_and_keeps_what_is_there(url: str) -> None:
    store = Store.open(url)
    store.put_user("ann", {"age": "25"})
    store.add_ratings("ann", rated(a=1))
    statements = ("ALTER TABLE paml_users ADD COLUMN note TEXT", "UPDATE paml_users SET note = 'moved'")
    steps = (*STEPS, {"sqlite": statements, "postgresql": statements})
    database = Database(url)
    for applied in (1, 0):
        with database.writing() as connection:
            assert migrate(connection, url, steps) == applied
            assert connection.scalar(text("SELECT note FROM paml_users WHERE id = 'ann'")) == "moved"
    assert values_of(store, "ann") == {"a": 1}
    store.close()
    with pytest.raises(FormatError, match=r"has version 3, this paml knows versions up to 2; use the newer"):
        Store.open(url)
    database.close()


def test_a_store_of_the_first_version_keeps_users_and_its_keys_open_what_they_opened(url: str) -> None:
    database = Database(url)
    with database.writing() as connection:
        migrate(connection, url, STEPS[:1])
        for number, name in enumerate(("ann", "bob"), start=1):
            values = {"number": number, "id": name}
            connection.execute(text("INSERT INTO paml_users VALUES (:number, :id, '{}', :number)"), values)
        connection.execute(text("INSERT INTO paml_ratings VALUES (1, 'a', 5, '{}', 1)"))
        old = {"digest": digest_of("secret"), "created": "2026-01-01T00:00:00+00:00"}
        connection.execute(text("INSERT INTO paml_keys VALUES ('old', :digest, :created)"), old)
        if database.kind == "sqlite":
            connection.execute(text("UPDATE paml_counter SET value = 2"))
        else:
            connection.execute(text("SELECT setval('paml_versions', 2)"))
    database.close()
    store = Store.open(url)
    assert values_of(store, "ann") == {"a": 5}
    assert store.count() == 2
    assert store.has_had_keys()
    key = store.check_key("secret")
    assert key is not None
    assert (key.name, key.scope, key.expires) == ("old", "admin", None)
    store.close()


def test_a_step_that_fails_leaves_no_trace(url: str) -> None:
    Store.open(url).close()
    statements = ("ALTER TABLE paml_users ADD COLUMN note TEXT", "SELECT missing FROM nowhere")
    database = Database(url)
    with pytest.raises(Exception, match="nowhere"), database.writing() as connection:
        migrate(connection, url, (*STEPS, {"sqlite": statements, "postgresql": statements}))
    with database.reading() as connection:
        assert "note" not in {column["name"] for column in inspect(connection).get_columns("paml_users")}
        assert connection.scalar(text("SELECT version FROM paml_schema")) == len(STEPS)
    database.close()
    Store.open(url).close()


def test_invalid_addresses_are_refused(tmp_path: Path) -> None:
    for url in (
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "mysql://u:secret@h/d",
        "oracle+what://x",
        "",
        "postgresql",
    ):
        with pytest.raises(SettingsError, match="expected") as error:
            Store.open(url)
        assert "secret" not in str(error.value)
    with pytest.raises(PamlError, match="cannot be opened"):
        Store.open(f"sqlite:///{tmp_path}/missing/s.db")
    with pytest.raises(PamlError, match="cannot be opened"):
        Store.open(f"sqlite:///{tmp_path}")


def test_an_sqlite_file_is_durable_private_and_oddly_named(tmp_path: Path) -> None:
    folder = tmp_path / "a folder %20 with ? and # and é"
    folder.mkdir()
    store = Store.open(file_url(folder / "s.db"))
    assert stat.S_IMODE((folder / "s.db").stat().st_mode) == 0o600
    with store._database.writing() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "busy_timeout")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "secure_delete": 1,
        "busy_timeout": 10_000,
    }
    store.close()
    with sqlite3.connect(folder / "s.db") as plain:
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    plain.close()
