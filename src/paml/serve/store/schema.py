"""The store's tables, as queries name them; `migrations.py` makes them."""

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Integer, MetaData, Sequence, Table, Text

BACKUP = "paml_backup"  # the table of a backup that holds its digest; no store has it
metadata = MetaData()

schema = Table("paml_schema", metadata, Column("version", Integer, nullable=False))

# Versions come from one counter for all users, so that a user who is deleted and comes back never has an old version:
# a sequence in PostgreSQL (writers do not wait for each other), one row in SQLite (which has one writer anyway).
versions = Sequence("paml_versions")
counter = Table("paml_counter", MetaData(), Column("value", BigInteger, nullable=False))

users = Table(
    "paml_users",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # the version with which the user began
    Column("id", Text, nullable=False, unique=True),
    Column("profile", Text, nullable=False),  # JSON
    Column("version", BigInteger, nullable=False),
)
ratings = Table(
    "paml_ratings",
    metadata,
    Column("number", BigInteger, ForeignKey(users.c.number, ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("item", Text, primary_key=True),
    Column("value", Double, nullable=False),
    Column("context", Text, nullable=False),  # JSON
    Column("version", BigInteger, nullable=False),  # the user's, when this rating was written: they keep their order
)
keys = Table(
    "paml_keys",
    metadata,
    Column("name", Text, primary_key=True),
    Column("digest", Text, nullable=False),  # SHA-256 of the secret, hexadecimal
    Column("created", Text, nullable=False),  # ISO 8601, UTC
    Column("scope", Text, nullable=False),  # what it opens: read, write or admin
    Column("expires", Text),  # ISO 8601, UTC; NULL if it never does
)
# One row about the whole store.
state = Table(
    "paml_state",
    metadata,
    Column("users", BigInteger, nullable=False),  # how many there are
    Column("keyed", Integer, nullable=False),  # 1 once there has been a key: from then on nobody gets in without one
    Column("probes", BigInteger, nullable=False),  # writes that only try whether writing works
)
audit = Table(
    "paml_audit",
    metadata,
    Column("moment", Text, nullable=False, index=True),  # ISO 8601 with microseconds, UTC
    Column("who", Text, nullable=False),  # a key's name; "-" for a caller without one
    Column("what", Text, nullable=False),
    Column("about", Text, nullable=False),  # a key's name, never a user's id
)
