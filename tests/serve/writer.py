"""Writes ratings from four threads and says which are acknowledged, until it is killed: `writer.py URL`."""

import os
import sys
import threading
from itertools import count

from paml.errors import StoreUnavailable
from paml.recommend.requests import Rating
from paml.serve.store.store import Store


def write(store: Store, user: str) -> None:
    for number in count():
        item = f"item{number}"
        try:
            store.add_ratings(user, [Rating(item, number, {})])
        except StoreUnavailable:
            continue
        os.write(1, f"{user} {item} {number}\n".encode())  # one call, so that lines of threads do not mix


if __name__ == "__main__":
    opened = Store.open(sys.argv[1], max_ratings=1_000_000)
    for name in ("a", "b", "c", "d"):
        opened.put_user(name, {})
        threading.Thread(target=write, args=(opened, name)).start()
