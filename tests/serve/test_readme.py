"""README's curl lines, exactly as they stand there, before a real server, and what `make serve` would do."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from serve.serving import Server

README = Path(__file__).parent.parent.parent / "README.md"
ADDRESS = "http://127.0.0.1:8000"


def test_curl_lines_do_what_readme_says(server: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    block = next(text for text in re.findall(r"^```\w*\n(.*?)^```$", README.read_text(), re.M | re.S) if "curl" in text)
    first, *lines = block.strip().splitlines()
    assert ADDRESS in first
    assert len(lines) > 8
    with server.client() as client:
        client.delete("/v1/users/anna")  # whom other tests of this server may know
    for line in lines:
        command, promised = re.fullmatch(r"curl (.*?) +# (\d{3})(?:, .*)?", line).groups()  # type: ignore[union-attr]
        script = f"{first.replace(ADDRESS, server.url)}\ncurl -s -o /dev/null -w '%{{http_code}}' {command}"
        answer = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
        assert answer.stdout == promised, line


def test_make_serve_prepares_trains_and_serves(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    command = ["make", "--dry-run", "-f", str(README.parent / "Makefile"), "serve", "PORT=8123"]
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()

    def plan() -> str:
        own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # not of `make test`
        return subprocess.run(command, cwd=tmp_path, env=own, check=True, capture_output=True, text=True).stdout

    steps = [line.removeprefix(".venv/bin/paml ") for line in plan().splitlines() if line.startswith(".venv/bin/paml")]
    assert [step.split()[0] for step in steps] == ["data", "train", "serve"]
    assert steps[-1] == "serve paml-demo/run --port 8123"
    (tmp_path / "paml-demo" / "run").mkdir(parents=True)
    (tmp_path / "paml-demo" / "data").mkdir()
    (tmp_path / "paml-demo" / "data" / "manifest.json").touch()
    (tmp_path / "paml-demo" / "run" / "weights.safetensors").touch()
    again = plan()
    assert "paml train" not in again  # what is trained is served at once
    assert "paml serve" in again
