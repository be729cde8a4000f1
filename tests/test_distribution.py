"""What is given to others: pinned and hashed dependencies, a pinned base image, and a complete source distribution."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "deploy/requirements.lock", "deploy/torch.lock")


def pins(text: str) -> dict[str, str]:
    """Versions by normalised name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_locks_have_the_pins_of_the_constraints() -> None:
    """After a change of constraints.txt, `make lock` writes them again."""
    wanted = pins((ROOT / "constraints.txt").read_text())
    everything, image, torch = (pins((ROOT / name).read_text()) for name in LOCKS)
    assert everything == {name: version for name, version in wanted.items() if name != "torch"}
    assert torch == {"torch": wanted["torch"]}
    assert image.items() <= everything.items()
    assert {"fastapi", "polars", "psycopg", "uvicorn", "setuptools"} <= set(image)
    assert not {name for name in image if name.startswith(("nvidia", "cuda", "torch", "triton"))}


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), line


def test_the_image_is_pinned_and_installs_nothing_without_a_hash() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    assert re.search(r"^ARG BASE=python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", text, flags=re.MULTILINE)
    assert re.findall(r"^FROM (.+)$", text, flags=re.MULTILINE) == ["${BASE}"]
    for command in re.findall(r"pip install [^&\n]+", text):
        assert "--require-hashes" in command or command.split()[-1] == ".", command
        assert "--no-deps" in command


@pytest.mark.slow
def test_the_source_distribution_has_docs_and_tests(tmp_path: Path) -> None:
    """Built by setuptools itself, from what git tracks, without asking an index for anything."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    copy = tmp_path / "copy"
    for name in listed:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools import build_meta as b; print(b.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True)
    with tarfile.open(tmp_path / done.stdout.strip().splitlines()[-1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        name for name in listed if name.startswith(("docs/", "tests/", "src/", "deploy/", "benchmarks/", "examples/"))
    }
    expected |= {"Makefile", "constraints.txt", "requirements.lock", "CHANGELOG.md", "SECURITY.md", "LICENSE"}
    assert expected <= held
