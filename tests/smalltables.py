"""Small tables in exactly the format that users have."""

from pathlib import Path

SCHEMA_TOML = """\
[target]
kind = "rating"
low = 1
high = 5

[interactions]
file = "ratings.csv"
user = "uid"
item = "movie"
target = "stars"
time = "when"

[users]
file = "users.csv"
key = "uid"
[users.fields]
gender = "categorical"
age = { kind = "categorical", minimum = 10, maximum = 100 }
town = { kind = "categorical", column = "home town" }

[items]
file = "movies.csv"
key = "movie"
[items.fields]
title = "identifier"
genres = "multi"
price = "numeric"
"""


def write_tables(folder: Path, users: int = 20, items: int = 12) -> Path:
    """Twenty users, each with as many ratings as their number allows, in CSV files with a schema."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.toml").write_text(SCHEMA_TOML)
    people = [f'{u},{"MF"[u % 2]},{20 + u % 3},"Town, {u % 4}"' for u in range(users)]
    (folder / "users.csv").write_text("\n".join(["uid,gender,age,home town", *people]) + "\n")
    films = [f'{i},"The ""Film"" {i}",drama|genre{i % 3},{i}.5' for i in range(items)]
    (folder / "movies.csv").write_text("\n".join(["movie,title,genres,price", *films]) + "\n")
    log = [
        f"{u},{i},{1 + (u + i) % 5},{1000 + i}" for u in range(users) for i in range(items) if (u + i) % 12 < 3 + u // 3
    ]
    (folder / "ratings.csv").write_text("\n".join(["uid,movie,stars,when", *log]) + "\n")
    return folder
