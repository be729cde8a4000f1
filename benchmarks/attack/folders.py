"""Hostile folders and archives: pipes, devices, forged sizes, bombs, forbidden files. Each is a clear error, and soon.

Forged runs and data sets have digests and seals that fit, so that what they ask for is really asked for. What may not
be read is tried as another user, if this one is root.
"""

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import paml
from benchmarks.attack.cases import Case, arguments, attempt, command, report, watched
from benchmarks.attack.forge import forge, forge_run
from benchmarks.attack.runs import SETTINGS, told
from benchmarks.attack.tables import write

NOBODY = 65534
UNREAD = "croissant.json"  # for other programs: paml writes it and never reads it
HUGE = (10**6, 10**9, 10**12, 10**18)


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def _sparse(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(1 << 42)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def _deep(file: Path) -> None:
    file.write_text("[" * 200_000)


def _digits(file: Path) -> None:
    file.write_text('{"format": ' + "9" * 100_000 + "}")


def _header(size: int) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        file.write_bytes(struct.pack("<Q", size) + b"{}")

    return apply


def _shape(file: Path) -> None:
    """A tensor that claims more than the file holds."""
    head = json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}}).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))


KINDS = {"pipe": _pipe, "device": _device, "sparse": _sparse, "folder": _folder, "loop": _loop}
JSON = {"deep": _deep, "digits": _digits}
WEIGHTS = {"header": _header(10**18), "long header": _header(1 << 40), "shape": _shape}
ARRAYS: dict[str, bytes] = {
    "no array": b"",
    "magic": b"\x93NUMPY",
    "version": b"\x93NUMPY\x09\x00" + bytes(200),
    "tokens": b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<i8', (((" + b" " * 97 + b"\n",
    "pickle": b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }".ljust(117)
    + b"\n",
    "shape": b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<i8', 'fortran_order': False, 'shape': (10000000000000,), }".ljust(117)
    + b"\n",
    "negative": b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }".ljust(117)
    + b"\n",
    "long": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
}


class Folders:
    """What the cases are made from: a run, a data set, tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        data = paml.prepare("synthetic", out=folder / "data", users=120, items=40)
        self.data, self.run = data.path, paml.train(data, "ridge", out=folder / "run", settings=SETTINGS).path
        self.told = told(paml.load(self.run))
        self.tables = write(folder / "tables")
        self.count = 0

    def copy(self, what: Path) -> Path:
        """A copy of its own for each case."""
        self.count += 1
        return Path(shutil.copytree(what, self.folder / f"copy-{self.count}"))

    def opened(self, run: Path) -> tuple[str, str]:
        """Use a run."""
        used = lambda: ("same" if told(paml.load(run)) == self.told else "wrong", "answered")  # noqa: E731
        return attempt(used, (paml.PamlError,))

    def trained(self, data: Path) -> tuple[str, str]:
        """Train on a data set, and describe it by the command."""
        kind, text = command("train", data, "--out", data.with_name(f"{data.name}-run"), "epochs=0", "ensemble_size=1")
        looked, said = command("data", "describe", data)
        return (looked, said) if looked == "traceback" else ("wrong", "trained") if kind == "same" else (kind, text)

    def runs(self) -> dict[str, Callable[[], tuple[str, str]]]:
        """Hostile runs."""
        cases: dict[str, Callable[[], tuple[str, str]]] = {}
        names = [str(file.relative_to(self.run)) for file in sorted(self.run.rglob("*")) if file.is_file()]

        def changed(name: str, change: Callable[[Path], Any]) -> Callable[[], tuple[str, str]]:
            def case() -> tuple[str, str]:
                copy = self.copy(self.run)
                change(copy / name)
                return self.opened(copy)

            return case

        for name in names:
            ways = {**KINDS, **(JSON if name.endswith(".json") else WEIGHTS if name.endswith("tensors") else {})}
            cases |= {f"run {name} {way}": changed(name, change) for way, change in ways.items()}

        def forged(**changes: Any) -> Callable[[], tuple[str, str]]:
            def case() -> tuple[str, str]:
                copy = self.copy(self.run)
                return attempt(lambda: self.opened(forge_run(copy, **changes)), (paml.PamlError, ValueError))

            return case

        for size in HUGE:
            for key in ("ensemble_size", "embedding_size", "item_embedding", "memory_size", "prior_from_items"):
                cases[f"run {key}={size}"] = forged(recipe={key: size})
            cases[f"run hidden={size}"] = forged(recipe={"hidden": [size, size], "network": "fields"})
            cases[f"run items={size}"] = forged(items=size)
            cases[f"run known_items={size}"] = forged(known_items=size)
            values = json.loads((self.run / "settings.json").read_text())
            cases[f"run vocabulary={size}"] = forged(vocabulary=dict.fromkeys(values["vocabulary"], size))
            scale = {**values["data_schema"], "target": {"kind": "rating", "low": 0, "high": 1, "step": 1 / size}}
            cases[f"run step=1/{size}"] = forged(data_schema=scale)
        cases["run method"] = forged(method="no such method")
        return cases

    def datasets(self) -> dict[str, Callable[[], tuple[str, str]]]:
        """Hostile data sets."""
        cases: dict[str, Callable[[], tuple[str, str]]] = {}
        files = [file for file in sorted(self.data.rglob("*")) if file.is_file() and file.name != UNREAD]
        names = [str(file.relative_to(self.data)) for file in files]

        def changed(
            name: str, change: Callable[[Path], Any], *, reforge: bool = False, **more: Any
        ) -> Callable[[], tuple[str, str]]:
            def case() -> tuple[str, str]:
                copy = self.copy(self.data)
                change(copy / name)
                if reforge or more:
                    forge(copy, fingerprint=True, **more)
                return self.trained(copy)

            return case

        for name in names:
            ways = {**KINDS, **(JSON if name.endswith(".json") else {})}
            cases |= {f"data {name} {way}": changed(name, change) for way, change in ways.items()}
        for name in ("item", "offsets", "support", "user.age", "item.genre.offsets"):
            for way, content in ARRAYS.items():
                put = lambda file, content=content: file.write_bytes(content)  # noqa: E731
                cases[f"data {name} {way}"] = changed(f"arrays/{name}.npy", put, reforge=True)
            for way, value in (("negative", -1), ("beyond", 10**9)):
                put = lambda file, value=value: np.save(file, np.full_like(np.load(file), value))  # noqa: E731
                cases[f"data {name} {way}"] = changed(f"arrays/{name}.npy", put, reforge=True)
        for size in (-1, 0, *HUGE):
            for key in ("users", "items", "interactions"):
                cases[f"data {key}={size}"] = changed("manifest.json", lambda _: None, **{key: size})
            splits = {"train": (0, size), "validation": (size, size), "test": (size, size)}
            cases[f"data splits={size}"] = changed("manifest.json", lambda _: None, splits=splits)
        return cases

    def archives(self) -> dict[str, Callable[[], tuple[str, str]]]:  # noqa: C901 - a list of cases
        """Hostile archives of tables, and hostile tables."""
        cases: dict[str, Callable[[], tuple[str, str]]] = {}

        def packed(
            name: str, fill: Callable[[zipfile.ZipFile], Any], after: Callable[[Path], Any] = lambda _: None
        ) -> None:
            def case() -> tuple[str, str]:
                self.count += 1
                file = self.folder / f"archive-{self.count}.zip"
                with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                    fill(archive)
                after(file)
                return self.prepared(file)

            cases[f"archive {name}"] = case

        def add(archive: zipfile.ZipFile, *but: str) -> None:
            for file in sorted(self.tables.iterdir()):
                if file.name not in but:
                    archive.write(file, file.name)

        def bomb(archive: zipfile.ZipFile) -> None:
            add(archive, "ratings.csv")
            with archive.open("ratings.csv", "w", force_zip64=True) as file:
                for _ in range(600):
                    file.write(bytes(1 << 20))

        def twice(archive: zipfile.ZipFile) -> None:
            add(archive)
            archive.writestr(zipfile.ZipInfo("./ratings.csv"), "uid,movie,stars,when\n")

        def declared(file: Path) -> None:
            """The directory states a size that no disk has."""
            data = bytearray(file.read_bytes())
            at = data.rfind(b"PK\x01\x02")
            data[at + 24 : at + 28] = b"\xfe\xff\xff\xff"
            file.write_bytes(data)

        def damaged(file: Path) -> None:
            data = bytearray(file.read_bytes())
            data[60:90] = bytes(30)
            file.write_bytes(data)

        packed("bomb", bomb)
        packed("twice", twice)
        packed("empty", lambda _: None)
        packed("outside", lambda archive: archive.writestr("../../ratings.csv", "x"))
        packed("a size that it has not", add, declared)
        packed("damaged", add, damaged)
        packed("cut", add, lambda file: os.truncate(file, file.stat().st_size // 2))
        packed("not an archive", add, lambda file: file.write_bytes(b"PK\x03\x04" + bytes(1000)))
        packed("a pipe", add, _pipe)
        packed("a device", add, _device)
        for name in ("ratings.csv", "users.csv", "schema.toml"):
            for way, change in {**KINDS, "zeros": lambda file: file.write_bytes(bytes(10_000))}.items():
                cases[f"tables {name} {way}"] = self.changed_tables(name, change)
        for encoding in (
            "hex",
            "idna",
            "punycode",
            "undefined",
            "zlib",
            "rot13",
            "unicode_escape",
            "utf-7",
            "no such",
            "utf\\u0000",
        ):
            text = f'encoding = "{encoding}"\n'
            change = lambda file, text=text: file.write_text(text + file.read_text())  # noqa: E731
            cases[f"tables encoding {encoding}"] = self.changed_tables("schema.toml", change, may_work=True)
        head = ",".join(["uid", "movie", "stars", "when", *(f"c{k}" for k in range(20_000))]) + "\n"
        cases["tables of 20,000 columns"] = self.changed_tables("ratings.csv", lambda file: file.write_text(head * 50))
        return cases

    def changed_tables(
        self, name: str, change: Callable[[Path], Any], *, may_work: bool = False
    ) -> Callable[[], tuple[str, str]]:
        """Tables of which one file is hostile, prepared and inspected."""

        def case() -> tuple[str, str]:
            copy = self.copy(self.tables)
            change(copy / name)
            kind, text = self.prepared(copy)
            looked, said = command("data", "inspect", copy / "ratings.csv", copy / "users.csv")
            kind = "same" if may_work and kind == "wrong" else kind
            return (looked, said) if looked == "traceback" else (kind, text)

        return case

    def prepared(self, path: Path) -> tuple[str, str]:
        """Prepare tables."""
        kind, text = command("data", "prepare", "tables", "--from", path, "--out", f"{path}-out", "cold_share=1")
        return ("wrong", "prepared") if kind == "same" else (kind, text)

    def forbidden(self) -> dict[str, Callable[[], tuple[str, str]]]:
        """Files that another user may not read: said so, by name."""

        def case(make: Path, name: str, use: Callable[[Path], tuple[str, str]]) -> Callable[[], tuple[str, str]]:
            def run() -> tuple[str, str]:
                copy = self.copy(make)
                (copy / name).chmod(0)
                os.seteuid(NOBODY)
                try:
                    kind, text = use(copy)
                finally:
                    os.seteuid(0)
                return (kind, text) if "ermission" in text else ("wrong", text)

            return run

        if os.geteuid():
            return {}
        runs = ("settings.json", "weights.safetensors", "vocab.json", "catalogue.parquet", "preference.safetensors")
        data = ("manifest.json", "arrays/target.npy", "vocabulary.json", "users.parquet")
        opened = lambda copy: attempt(lambda: ("wrong", told(paml.load(copy))[:100]), (paml.PamlError,))  # noqa: E731
        verified = lambda copy: attempt(lambda: ("wrong", str(paml.open_data(copy).verify())), (paml.PamlError,))  # noqa: E731
        found = {f"forbidden run {name}": case(self.run, name, opened) for name in (*runs, "choice")}
        return found | {f"forbidden data {name}": case(self.data, name, verified) for name in data}

    def all(self) -> dict[str, Callable[[], tuple[str, str]]]:
        """Every case by its name."""
        return {**self.runs(), **self.datasets(), **self.archives(), **self.forbidden()}


def prepared(folder: Path, _: int) -> Case:
    """All cases, in order of their names."""
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    cases = list(Folders(folder).all().items())

    def case(number: int) -> tuple[str, str]:
        if number >= len(cases):
            return "same", "none is left"
        name, action = cases[number]
        kind, text = attempt(action, (paml.PamlError,))
        return kind, f"{name}: {text}"

    return case


def main() -> None:
    """Try every hostile folder and archive, or the first `--count`."""
    given = arguments(10**6)
    found = []
    for start in range(0, given.count, 50):
        part = watched("benchmarks.attack.folders", range(start, min(start + 50, given.count)), given.seed)
        found += [ended for ended in part if ended.text != "none is left"]
        if any(ended.text == "none is left" for ended in part):
            break
    report("hostile folders and archives", given.seed, found)


if __name__ == "__main__":
    main()
