"""What is made ahead is the same, in the same order, and made once."""

from collections.abc import Iterator

from paml.training.ahead import Ahead


def test_items_come_in_order_whenever_they_are_made() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(4):
            made.append(number)
            yield number

    ahead = Ahead(items())
    ahead.prepare()
    ahead.prepare()
    assert made == [0]
    assert [next(ahead), next(ahead)] == [0, 1]
    ahead.prepare()
    assert [*ahead] == [2, 3] == made[2:]
    ahead.prepare()
    assert [*ahead] == []
