"""From one version of the store's tables to the next: each step is applied once, whole or not at all."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, insert, inspect, select, text, update

from paml.errors import FormatError
from paml.serve.store.schema import schema

# A step is the statements for each kind of database. Steps that were released are never edited: append one.
Step = Mapping[str, tuple[str, ...]]

_RATINGS = """CREATE TABLE paml_ratings (
    number BIGINT NOT NULL REFERENCES paml_users (number) ON DELETE CASCADE,
    item TEXT {bytewise} NOT NULL,
    value DOUBLE PRECISION NOT NULL,
    context TEXT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (number, item)
) {clustered}"""
_KEYS = "CREATE TABLE paml_keys (name TEXT PRIMARY KEY NOT NULL, digest TEXT NOT NULL, created TEXT NOT NULL)"
_USERS = """CREATE TABLE paml_users (
    number {whole} PRIMARY KEY NOT NULL,
    id TEXT {bytewise} NOT NULL UNIQUE,
    profile TEXT NOT NULL,
    version BIGINT NOT NULL
)"""

STEPS: tuple[Step, ...] = (
    {
        "sqlite": (
            "CREATE TABLE paml_counter (value BIGINT NOT NULL)",
            "INSERT INTO paml_counter (value) VALUES (0)",
            _USERS.format(whole="INTEGER", bytewise=""),
            _RATINGS.format(bytewise="", clustered="WITHOUT ROWID"),
            _KEYS,
        ),
        "postgresql": (
            "CREATE SEQUENCE paml_versions",
            _USERS.format(whole="BIGINT", bytewise='COLLATE "C"'),
            _RATINGS.format(bytewise='COLLATE "C"', clustered=""),
            _KEYS,
        ),
    },
)
LOCK = 0x70616D6C  # "paml": processes that start together migrate one after the other


def migrate(connection: Connection, where: str, steps: Sequence[Step] = STEPS) -> int:
    """Bring the tables to the newest version inside the caller's transaction; the number of steps applied."""
    kind = connection.dialect.name
    if kind == "postgresql":  # SQLite's writing transaction is a lock of its own
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    if not inspect(connection).has_table(schema.name):
        connection.execute(text("CREATE TABLE paml_schema (version INTEGER NOT NULL)"))
        connection.execute(insert(schema).values(version=0))
    found = connection.scalars(select(schema.c.version)).all()
    if len(found) != 1 or found[0] < 0:
        raise FormatError(
            f"the table {schema.name} should hold one version, but holds {found}",
            where=where,
            remedy="restore a backup",
        )
    version: int = found[0]
    if version > len(steps):
        raise FormatError(
            f"the store has version {version}, this paml knows versions up to {len(steps)}",
            where=where,
            remedy="use the newer paml that wrote it, or another store",
            argument="store",
        )
    for step in steps[version:]:
        for statement in step[kind]:
            connection.execute(text(statement))
    if version < len(steps):
        connection.execute(update(schema).values(version=len(steps)))
    return len(steps) - version
