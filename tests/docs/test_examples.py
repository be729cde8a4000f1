"""Documents do not rot: their examples run, their links and paths exist."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.examples import BLOCKS, DIRECTIVES, DOCUMENTS, LANGUAGES, PROJECT, Block, anchors_of

RUN = [
    pytest.param(block, id=str(block), marks=[pytest.mark.slow] if "slow" in block.directives else [])
    for block in BLOCKS
    if block.is_run
]


@pytest.mark.parametrize("block", RUN)
def test_an_example_runs(block: Block, session_of: Callable[[Block], Any]) -> None:
    session_of(block).run_up_to(block)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_has_a_language_and_known_comments(block: Block) -> None:
    assert block.language in LANGUAGES
    assert set(block.directives) <= DIRECTIVES
    assert len(block.directives.get("skip", "a reason")) > 5
    assert block.text


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_documents_lead_to_a_heading(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
        assert anchor in anchors_of(path.parent / target if target else path), f"{target}#{anchor}"


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], ids=lambda path: path.name
)
def test_modules_that_are_named_exist(path: Path) -> None:
    for name in re.findall(r"`([\w./-]+\.py)`", path.read_text()):
        roots = (PROJECT, PROJECT / "src" / "paml", PROJECT / "src" / "paml" / "data" / "sources")
        assert any((root / name).exists() for root in roots), name
