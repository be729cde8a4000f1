"""Times in seconds, where days and dates are counted: logs also have milliseconds and finer, by their magnitude."""

from dataclasses import replace

import polars as pl

from paml.data.protocol import Protocol
from paml.data.sources import RawData
from paml.errors import DataError

FROM, UNTIL = 3e8, 4.2e9
"""Seconds of 1979 and of 2103: between them, and a thousand times as large and so on, are times of today."""
UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
WRITTEN = (19_000_101.0, 21_001_231.0)  # days as numbers, such as 20261119
FEW = 0.01
"""A share of the rows that may have another unit, or none: some logs have zeros where nothing is known."""


def unit_of(low: float, high: float) -> str | None:
    """What numbers between these count since 1970; None if they are something else."""
    return next((name for name, unit in UNITS.items() if low / unit > FROM and high / unit < UNTIL), None)


def in_seconds(raw: RawData, protocol: Protocol) -> tuple[RawData, Protocol]:
    """The tables and the protocol with times in seconds, if it counts days or names dates; else they are unchanged."""
    dates = {name: date for name in ("validation_from", "test_from") if (date := getattr(protocol, name)) is not None}
    named = [name for name, date in dates.items() if not _is_number(date)]
    if protocol.support_days is None and not named:
        return raw, protocol
    log = raw.interactions if raw.events is None else raw.events.rows
    if "time" not in log.collect_schema().names():
        return raw, protocol  # which is an error of its own
    setting = named[0] if named else "support_days"
    unit = UNITS[_unit(log, raw.files.get("interactions", "interactions"), setting)]
    if unit == 1.0:
        return raw, protocol
    seconds = pl.col("time").cast(pl.Float64) / unit
    events = None if raw.events is None else replace(raw.events, rows=raw.events.rows.with_columns(time=seconds))
    numbers = {name: _seconds(date, unit) for name, date in dates.items() if name not in named}
    return (
        replace(raw, interactions=raw.interactions.with_columns(time=seconds), events=events),
        protocol.model_copy(update=numbers),
    )


def _unit(log: pl.LazyFrame, file: str, setting: str) -> str:
    """The unit of the rows that are times of today; numbers of which none is pass for seconds."""
    time = pl.col("time").cast(pl.Float64)
    within = {name: ((time > FROM * unit) & (time < UNTIL * unit)).sum() for name, unit in UNITS.items()}
    month, day = time // 100 % 100, time % 100
    written = time.is_between(*WRITTEN) & month.is_between(1, 12) & day.is_between(1, 31) & (day == day.floor())
    found = log.select(**within, written=written.sum(), rows=pl.len()).collect(engine="streaming")
    counts = found.row(0, named=True)
    many = [name for name in UNITS if counts[name] > FEW * counts["rows"]]
    if len(many) == 1:
        return many[0]
    if not many and counts["written"] < (1 - FEW) * max(counts["rows"], 1):
        return "seconds"
    what = f"times are partly in {many[0]} and partly in {many[1]}" if many else "times are days written as numbers"
    remedy = f"{setting} needs seconds: write them, milliseconds, or dates such as 2026-11-19"
    raise DataError(what, where=file, remedy=remedy)


def _seconds(number: str, unit: float) -> str:
    """A date as the source counts time, in seconds; one that is in seconds already was reported by us."""
    return number if FROM < float(number) < UNTIL else repr(float(number) / unit)


def _is_number(date: str) -> bool:
    """Whether a date is a number as the source has it."""
    try:
        float(date)
    except ValueError:  # one in ISO form: the protocol has checked it
        return False
    return True
