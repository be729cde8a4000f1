"""Sources: where raw tables come from. The registry is this dict; a further source is a further line."""

from paml.data.sources import synthetic, tables
from paml.data.sources.base import LoadRequest, RawData, Source
from paml.errors import SettingsError, nearest

__all__ = ["SOURCES", "LoadRequest", "RawData", "Source", "find_source"]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "synthetic",
            "embedded world of ratings or clicks, made by a seed",
            synthetic.SyntheticSettings,
            synthetic.load,
            False,
        ),
        Source("tables", "your own delimited files with a schema.toml", tables.TablesSettings, tables.load, True),
    )
}


def find_source(name: str) -> Source:
    """The source called `name`, or an error that lists the known ones."""
    if name not in SOURCES:
        raise SettingsError(f"unknown source '{name}'", remedy=nearest(name, SOURCES))
    return SOURCES[name]
