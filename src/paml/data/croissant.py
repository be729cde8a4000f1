"""A prepared data set described in Croissant 1.0 (MLCommons, JSON-LD): `croissant.json`, for catalogues and loaders.

It says what the manifest says, in words that others read: every file with its SHA-256, the three tables with their
columns and types, and where the source is published and under which terms. The manifest does not list it: paml never
reads it, and whoever publishes a data set adds a citation, a licence or an address of their own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from paml.data.dataset import Manifest
from paml.data.sources import SOURCE_REGISTRY

FILE = "croissant.json"
CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_OWN = (
    *(
        "citeAs",
        "column",
        "equivalentProperty",
        "extract",
        "field",
        "fileProperty",
        "fileObject",
        "fileSet",
        "format",
        "includes",
    ),
    *("isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{name: f"cr:{name}" for name in _OWN},
}
"""The terms of the specification, as it gives them."""
FORMATS = {".parquet": "application/x-parquet", ".json": "application/json", ".npy": "application/octet-stream"}
TABLES = {
    "users": "One row per user: the profile, the split, the group, and the numbers of support and query rows.",
    "items": "One row per item: its content.",
    "interactions": "One row per interaction; `user` and `item` are row numbers, from 0, of the other two tables.",
}
KEYS = {"users": "user", "items": "item"}


def write_croissant(folder: Path, manifest: Manifest) -> None:
    """Describe a data set in the folder that holds its files; part of writing the folder as a whole."""
    columns = {name: pl.scan_parquet(folder / f"{name}.parquet", glob=False).collect_schema() for name in TABLES}
    text = json.dumps(described(manifest, columns), indent=1, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def described(manifest: Manifest, columns: Mapping[str, Mapping[str, pl.DataType]]) -> dict[str, Any]:
    """The description; `columns` are the types of the three tables' columns."""
    source, kind = manifest.source.name, manifest.data_schema.target.kind
    sizes = f"{manifest.users:,} users, {manifest.items:,} items, {manifest.interactions:,} {kind}s"
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": f"paml-{source}",
        "description": f"{source}, prepared by {manifest.created_by} for new users: {sizes}.",
        "version": "1.0.0",
        "identifier": manifest.fingerprint,
        **_published(source),
        "distribution": [_file(name, one.size, one.sha256) for name, one in sorted(manifest.files.items())],
        "recordSet": [_table(name, columns[name]) for name in TABLES],
    }


def _published(source: str) -> dict[str, str]:
    """Where the source is published, and the page that has its terms; nothing for people's own tables."""
    known = SOURCE_REGISTRY.get(source)
    if known is None or known.archive is None:
        return {}
    return {"url": known.archive.page, "license": known.archive.page, "isBasedOn": known.archive.url}


def _file(name: str, size: int, sha256: str) -> dict[str, str]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{size} B",
        "encodingFormat": FORMATS[Path(name).suffix],
        "sha256": sha256,
    }


def _table(name: str, columns: Mapping[str, pl.DataType]) -> dict[str, Any]:
    key = {"key": {"@id": f"{name}/{KEYS[name]}"}} if name in KEYS else {}
    fields = [_field(name, column, dtype) for column, dtype in columns.items()]
    about = {"@type": "cr:RecordSet", "@id": name, "name": name, "description": TABLES[name]}
    return {**about, **key, "field": fields}


def _field(table: str, column: str, dtype: pl.DataType) -> dict[str, Any]:
    inner = dtype.inner if isinstance(dtype, pl.List) else dtype
    return {
        "@type": "cr:Field",
        "@id": f"{table}/{column}",
        "name": column,
        "dataType": data_type(inner),
        **({"repeated": True} if isinstance(dtype, pl.List) else {}),
        "source": {"fileObject": {"@id": f"{table}.parquet"}, "extract": {"column": column}},
    }


def data_type(dtype: Any) -> str:
    """The type of a column's values."""
    if dtype == pl.Boolean:
        return "sc:Boolean"
    if dtype.is_integer():
        return "sc:Integer"
    if dtype.is_float():
        return "sc:Float"
    return "sc:Date" if dtype.is_temporal() else "sc:Text"
