"""The next of a sequence, made while somebody is waited for."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Iterator[T], Generic[T]):
    """The same items in the same order; `prepare` makes the next one early.

    >>> numbers = Ahead(iter([1, 2]))
    >>> numbers.prepare()
    >>> [*numbers]
    [1, 2]
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._made: deque[T] = deque(maxlen=1)

    def __next__(self) -> T:
        return self._made.popleft() if self._made else next(self._items)

    def prepare(self) -> None:
        """Make the next item now, unless it is there already or there is none."""
        if not self._made:
            self._made.extend(islice(self._items, 1))
