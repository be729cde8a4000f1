"""The page's files, read once: a request names one of them, and never a place in the file system."""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "page"


@dataclass(frozen=True)
class PageFile:
    """What is sent for one file."""

    content: bytes
    media_type: str
    tag: str


def read_page(folder: Path = FOLDER) -> dict[str, PageFile]:
    """All files of the page by name."""
    types = mimetypes.MimeTypes()
    types.add_type("text/javascript", ".js")
    found = {}
    for path in sorted(folder.glob("*.*")):
        content = path.read_bytes()
        kind = types.guess_type(path.name)[0] or "application/octet-stream"
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        found[path.name] = PageFile(content, f"{kind}; charset=utf-8" if kind.startswith("text/") else kind, tag)
    return found
