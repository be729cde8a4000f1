"""Packages of other people, as pip would have installed them: a module and its entry points."""

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, package: str, source: str, points: Mapping[str, str], version: str = "1.2") -> Path:
    """Write a package of one module into a folder; `points` are such as {"paml.methods": "name = module:entry"}."""
    folder.mkdir(parents=True, exist_ok=True)
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{text}\n" for group, text in points.items()))
    return folder
