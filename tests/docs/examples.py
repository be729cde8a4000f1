"""Fenced blocks of the documents, and what the comments directly before them tell a test (see CONTRIBUTING.md).

<!-- run: OLD => NEW; OLD => NEW -->   replace text before running, such as sizes by smaller ones
<!-- needs: NAME NAME -->              files and folders to put into the working folder first
<!-- slow: REASON -->                  a slow test
<!-- skip: REASON -->                  never run

Names in capitals, such as RESULTS, are no comments for tests: they mark where something will be inserted.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent
DOCUMENTS = [*sorted(PROJECT.glob("*.md")), *sorted((PROJECT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "toml", "json", "text", "nginx"}
DIRECTIVES = {"run", "needs", "slow", "skip"}


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    document: str
    line: int
    """Of its first line of text."""
    language: str
    source: str
    directives: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language not in {"text", "nginx"} and "skip" not in self.directives

    @property
    def needs(self) -> list[str]:
        return self.directives.get("needs", "").split()

    @property
    def text(self) -> str:
        """The source, with what `run` replaces."""
        text = self.source
        for change in filter(None, self.directives.get("run", "").split("; ")):
            old, new = change.split(" => ")
            assert old in text, f"{self}: '{old}' is not in the block"
            text = text.replace(old, new)
        return text


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a document, in order."""
    found: list[Block] = []
    directives: dict[str, str] = {}
    lines = iter(enumerate(path.read_text().splitlines(), start=1))
    for number, line in lines:
        if comment := re.fullmatch(r"<!-- ([a-z]+): (.+) -->", line):
            directives[comment[1]] = comment[2]
        elif line.startswith("```"):
            source = []
            for _, inner in lines:
                if inner.startswith("```"):
                    break
                source.append(inner)
            text = "\n".join(source) + "\n"
            found.append(Block(path.relative_to(PROJECT).as_posix(), number + 1, line[3:], text, directives))
            directives = {}
        elif line.strip():
            assert not directives, f"{path.name}:{number}: a comment for tests has no block"
    return found


BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]


def anchors_of(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
