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
# Keys had no scope until version 2, and opened everything.
_SCOPES = (
    "ALTER TABLE paml_keys ADD COLUMN scope TEXT NOT NULL DEFAULT 'admin'",
    "ALTER TABLE paml_keys ADD COLUMN expires TEXT",
)
_STATE = (
    "CREATE TABLE paml_state (users BIGINT NOT NULL, keyed INTEGER NOT NULL, probes BIGINT NOT NULL)",
    "INSERT INTO paml_state (users, keyed, probes) SELECT (SELECT count(*) FROM paml_users),"
    " (SELECT CASE WHEN count(*) > 0 THEN 1 ELSE 0 END FROM paml_keys), 0",
)
_AUDIT = (
    "CREATE TABLE paml_audit (moment TEXT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, about TEXT NOT NULL)",
    "CREATE INDEX paml_audit_moment ON paml_audit (moment)",
)

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
    dict.fromkeys(("sqlite", "postgresql"), (*_SCOPES, *_STATE, *_AUDIT)),
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
    version = version_of(connection, where, len(steps))
    for step in steps[version:]:
        for statement in step[kind]:
            connection.execute(text(statement))
    if version < len(steps):
        connection.execute(update(schema).values(version=len(steps)))
    return len(steps) - version


def version_of(connection: Connection, where: str, newest: int = len(STEPS)) -> int:
    """The version of the tables; one that is newer than this program is refused."""
    if not inspect(connection).has_table(schema.name):
        raise FormatError("there is no store in this database", where=where, remedy="check its address")
    found = connection.scalars(select(schema.c.version)).all()
    if len(found) != 1 or found[0] < 0:
        raise FormatError(
            f"the table {schema.name} should hold one version, but holds {found}",
            where=where,
            remedy="restore a backup",
        )
    if found[0] > newest:
        raise FormatError(
            f"the store has version {found[0]}, this paml knows versions up to {newest}",
            where=where,
            remedy="use the newer paml that wrote it, or another store",
            argument="store",
        )
    return int(found[0])
