"""What a report's figures say: the meanings of their marks."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from paml.analysis.results import read_results

SVG = "{http://www.w3.org/2000/svg}"


def meanings(folder: Path, name: str) -> list[str]:
    """What the marks of a figure mean."""
    root = ET.parse(folder / "figures" / f"{name}.svg").getroot()
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    return titles[1:]  # the first is the figure's own


def labels(folder: Path) -> dict[str, str]:
    return read_results(folder).plan.labels


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?<![\w=.-])\d+\.\d+", text)]
