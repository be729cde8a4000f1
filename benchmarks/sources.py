"""Reading and preparing each source, against Polars reading the same files alone: ratios of one run.

MovieLens-1M and Book-Crossing are measured where PAML_DATA_HOME names a folder that holds them. Taobao's files are
generated in their format, at the full size of 26 million impressions with PAML_BENCH_FULL=1, otherwise a tenth; so is a
CSV file of 1 GB (or a tenth) of which every tenth line is garbage.
"""

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

import paml
from paml.data.sources import LoadRequest, find_source

FULL = bool(os.environ.get("PAML_BENCH_FULL"))
IMPRESSIONS = 26_557_961 if FULL else 2_655_796
USERS, ADS = IMPRESSIONS // 23, IMPRESSIONS // 31
GARBAGE_ROWS = 40_000_000 if FULL else 4_000_000
CHILD = "from paml.cli import main; main()"
PROFILE = (
    "cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,new_user_class_level "
)
SCHEMA = """
[target]
kind = "rating"
low = 1
high = 5
[interactions]
file = "ratings.csv"
user = "user"
item = "item"
target = "rating"
time = "time"
"""


def prepare(*arguments: object) -> tuple[float, float]:
    """Seconds and peak GB of `paml data prepare` in a separate process (the start of Python included)."""
    started = time.perf_counter()
    command = [sys.executable, "-c", CHILD, "data", "prepare", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, arguments
    return time.perf_counter() - started, usage.ru_maxrss / 1e6


def read(source: str, path: Path, *, skip_bad_lines: bool) -> float:
    """Seconds that the source takes to read and check its files."""
    kind = find_source(source)
    with TemporaryDirectory() as work:
        started = time.perf_counter()
        kind.load(LoadRequest(path, kind.settings(), Path(work), skip_bad_lines=skip_bad_lines))
        return time.perf_counter() - started


def polars_alone(path: Path, separator: str) -> tuple[float, int]:
    """Seconds and lines of Polars reading a file into memory as text, without understanding quotes or bad lines."""
    started = time.perf_counter()
    frame = pl.read_csv(
        path,
        separator=separator,
        quote_char=None,
        encoding="utf8-lossy",
        has_header=False,
        infer_schema=False,
        truncate_ragged_lines=True,
    )
    return time.perf_counter() - started, len(frame)


def report(
    title: str, source: str, inputs: Path, logs: list[tuple[Path, str]], out: Path, *, skip: bool = False
) -> None:
    """Reading against Polars alone, and the whole preparation with its peak memory."""
    alone = [polars_alone(path, separator) for path, separator in logs]
    rows = sum(lines for _, lines in alone)
    seconds = read(source, inputs, skip_bad_lines=skip)
    ratio = seconds / sum(took for took, _ in alone)
    whole, peak = prepare(source, "--from", inputs, "--out", out, *(["--skip-bad-lines"] if skip else []))
    print(
        f"{title:<30} {rows:>11,} rows: read in {seconds:6.2f} s ({rows / seconds / 1e6:.2f} million rows/s), "
        f"{ratio:4.1f} times Polars alone; prepared in {whole:5.1f} s, peak {peak:.2f} GB"
    )


def chunks(total: int, size: int = 2_000_000) -> Iterator[int]:
    """Sizes that add up to the total."""
    for start in range(0, total, size):
        yield min(size, total - start)


def write_taobao(folder: Path) -> None:
    """Files in the format of Ali_Display_Ad_Click: skewed users and ads, 5 % clicks, some blank profile values."""
    rng = np.random.default_rng(0)
    with (folder / "raw_sample.csv").open("wb") as file:
        for k, size in enumerate(chunks(IMPRESSIONS)):
            click = (rng.random(size) < 0.05).astype(np.int8)
            frame = pl.DataFrame(
                {
                    "user": 1 + (USERS * rng.random(size) ** 2).astype(np.int64),
                    "time_stamp": 1_494_032_110 + rng.integers(0, 700_000, size),
                    "adgroup_id": 1 + (ADS * rng.random(size) ** 3).astype(np.int64),
                    "pid": np.where(rng.random(size) < 0.5, "430548_1007", "430539_1007"),
                    "nonclk": 1 - click,
                    "clk": click,
                }
            )
            frame.write_csv(file, include_header=k == 0)
    people = pl.DataFrame({"userid": np.arange(1, USERS + 1)}).with_columns(
        pl.Series(name, rng.integers(1, 8, USERS)) for name in PROFILE.split(",")
    )
    people = people.with_columns(pl.when(pl.Series(rng.random(USERS) < 0.5)).then("pvalue_level").alias("pvalue_level"))
    people.write_csv(folder / "user_profile.csv")
    ads = pl.DataFrame({"adgroup_id": np.arange(1, ADS + 1)}).with_columns(
        *(pl.Series(name, rng.integers(1, 10_000, ADS)) for name in ("cate_id", "campaign_id", "customer")),
        brand=pl.when(pl.Series(rng.random(ADS) < 0.3)).then(pl.lit("NULL")).otherwise(pl.lit("95471")),
        price=pl.Series(np.round(rng.lognormal(4, 1.5, ADS), 2)),
    )
    ads.write_csv(folder / "ad_feature.csv")


def write_garbage(clean: Path, dirty: Path) -> None:
    """The same ratings twice; in the second file every tenth line is garbage of some kind."""
    rng = np.random.default_rng(1)
    garbage = np.array(["garbage", "1,2", '1,"2,3,4', "1,2,3,4,5,6", "1,2,x,4", "1,2,9,4", ",,,", "\N{SNOWMAN}" * 20])
    for folder in (clean, dirty):
        folder.mkdir()
        (folder / "schema.toml").write_text(SCHEMA)
    header = "user,item,rating,time\n"
    with (clean / "ratings.csv").open("w") as good, (dirty / "ratings.csv").open("w") as bad:
        good.write(header)
        bad.write(header)
        for size in chunks(GARBAGE_ROWS):
            columns = (
                rng.integers(0, GARBAGE_ROWS // 30, size),
                rng.integers(0, 20_000, size),
                rng.integers(1, 6, size),
                rng.integers(10**9, 2 * 10**9, size),
            )
            text = pl.DataFrame({str(k): column for k, column in enumerate(columns)}).write_csv(include_header=False)
            good.write(text)
            lines = text.splitlines()
            for start in range(0, len(lines), 9):
                bad.write("\n".join([*lines[start : start + 9], str(rng.choice(garbage))]) + "\n")


def main() -> None:
    """Each source in turn."""
    home = Path(os.environ.get("PAML_DATA_HOME", "."))
    with TemporaryDirectory() as name:
        folder = Path(name)
        for source, archive, separator in (("ml-1m", "ml-1m.zip", ":"), ("bookcrossing", "BX-CSV-Dump.zip", ";")):
            if not (home / archive).exists():
                print(f"{source}: not measured, {archive} is not in the folder that PAML_DATA_HOME names")
                continue
            with zipfile.ZipFile(home / archive) as packed:
                packed.extractall(folder / source)
            logs = [(path, separator) for path in (folder / source).rglob("*.[dc][as][tv]")]
            report(source, source, folder / source, logs, folder / f"{source}-out")
        (folder / "taobao").mkdir()
        write_taobao(folder / "taobao")
        logs = [(path, ",") for path in (folder / "taobao").iterdir()]
        report("taobao", "taobao", folder / "taobao", logs, folder / "taobao-out")
        write_garbage(folder / "clean", folder / "dirty")
        for kind in ("clean", "dirty"):
            path = folder / kind / "ratings.csv"
            title = f"tables, {kind}, {path.stat().st_size / 1e9:.2f} GB"
            report(title, "tables", folder / kind, [(path, ",")], folder / f"{kind}-out", skip=kind == "dirty")
        clean, dirty = (paml.open_data(folder / f"{kind}-out") for kind in ("clean", "dirty"))
        arrays = ("offsets", "item", "target", "support")
        same = all(np.array_equal(clean.array(name), dirty.array(name)) for name in arrays)
        skipped = dirty.manifest.source.bad_lines
        print(f"the dirty file's {skipped:,} bad lines are skipped, and the rest is the same: {same}")


if __name__ == "__main__":
    main()
