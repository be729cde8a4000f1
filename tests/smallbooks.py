"""A small Book-Crossing in the form of the original dump."""

from pathlib import Path


def write_readers(folder: Path) -> Path:
    """Ten readers with 1 to 10 explicit ratings; the one with 6 also has 20 implicit ones, the one with 7 no age."""
    folder.mkdir()
    ages = {user: "NULL" if user == 7 else f'"{20 + user}"' for user in range(1, 11)}
    people = [f'"{user}";"rome, lazio, italy";{age}' for user, age in ages.items()]
    log = [f'"{user}";"{user:02}{item:02}";"{1 + item % 10}"' for user in ages for item in range(user)]
    log += [f'"6";"99{item:02}";"0"' for item in range(20)]
    for name, lines in (
        ("BX-Users", ['"User-ID";"Location";"Age"', *people]),
        ("BX-Books", ['"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher"']),
        ("BX-Book-Ratings", ['"User-ID";"ISBN";"Book-Rating"', *log]),
    ):
        (folder / f"{name}.csv").write_text("".join(line + "\n" for line in lines), encoding="latin-1")
    return folder
