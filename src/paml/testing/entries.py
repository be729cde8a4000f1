"""Something registered for the time of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from paml import REGISTRIES
from paml.registry import Origin


@contextmanager
def registered(kind: str, name: str, entry: object) -> Iterator[None]:
    """As `paml.register`, and forgotten at the end of the block."""
    module, registry = REGISTRIES[kind]
    known = getattr(import_module(module), registry)
    known.register(name, entry, Origin("test"))
    try:
        yield
    finally:
        known.forget(name)
