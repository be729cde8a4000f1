"""Rows from one store to another, of either kind and any version; and a digest of all that a store holds."""

import hashlib
import json
from collections.abc import Iterator

from sqlalchemy import Connection, MetaData, Row, Table, delete, insert, inspect, select, text, update

from paml.serve.store.schema import audit, counter, keys, ratings, state, users

NAMES = (users.name, ratings.name, keys.name, state.name, audit.name)  # users before their ratings
WHO_MAY = (keys.name, audit.name)
PART = 5000  # rows at a time


def tables(connection: Connection) -> dict[str, Table]:
    """The tables as they are in this database: an older version has fewer, with fewer columns."""
    there = set(inspect(connection).get_table_names())
    found = MetaData()
    return {name: Table(name, found, autoload_with=connection) for name in NAMES if name in there}


def copy(source: Connection, target: Connection, names: tuple[str, ...] = NAMES) -> None:
    """Replace the target's rows by the source's; both have tables of the same version."""
    known, into = tables(source), tables(target)
    for name in reversed(names):
        if name in into:
            target.execute(delete(into[name]))
    for name in names:
        if name in known:
            add = insert(into[name])
            for part in _parts(source, known[name]):
                target.execute(add, [dict(row._mapping) for row in part])


def digest(connection: Connection, counted: int | None = None) -> str:
    """A number that changes with any value of any row, and not with their order; and how many rows there are.

    `counted`: the counter as it was copied; PostgreSQL's goes on in the same transaction.
    """
    total, rows = get_counter(connection) if counted is None else counted, 0
    for name, table in tables(connection).items():
        columns = sorted(table.columns, key=lambda column: column.name)
        for part in _parts(connection, table):
            for row in part:
                values = [name, *(row._mapping[column.name] for column in columns)]
                text_of_row = json.dumps(values, ensure_ascii=False).encode()
                total += int.from_bytes(hashlib.sha256(text_of_row).digest(), "big")
                rows += 1
    return f"{total % 2**256:064x}-{rows}"


def get_counter(connection: Connection) -> int:
    """The last version that was given to a user."""
    if connection.dialect.name == "sqlite":
        return int(connection.execute(select(counter.c.value)).scalar_one())
    value, called = connection.execute(text("SELECT last_value, is_called FROM paml_versions")).one()
    return int(value) if called else 0


def set_counter(connection: Connection, value: int) -> None:
    """Versions begin after this one."""
    if connection.dialect.name == "sqlite":
        connection.execute(update(counter).values(value=value))
    elif value:
        connection.execute(text("SELECT setval('paml_versions', :value)"), {"value": value})


def _parts(connection: Connection, table: Table) -> Iterator[list[Row[tuple[object, ...]]]]:
    # A copy: options that are set on a connection itself would hold for its other statements.
    rows = connection.execute(select(table), execution_options={"stream_results": True})
    yield from (list(part) for part in rows.partitions(PART))
