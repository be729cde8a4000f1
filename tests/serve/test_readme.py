"""README's curl lines, exactly as they stand there, before a real server: each answers with the status it promises."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import Server

README = Path(__file__).parent.parent.parent / "README.md"
ADDRESS = "http://127.0.0.1:8000"


def test_curl_lines_do_what_readme_says(server: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    block = next(text for text in re.findall(r"^```\w*\n(.*?)^```$", README.read_text(), re.M | re.S) if "curl" in text)
    first, *lines = block.strip().splitlines()
    assert ADDRESS in first
    assert len(lines) > 8
    for line in lines:
        command, promised = re.fullmatch(r"curl (.*?) +# (\d{3})(?:, .*)?", line).groups()  # type: ignore[union-attr]
        script = f"{first.replace(ADDRESS, server.url)}\ncurl -s -o /dev/null -w '%{{http_code}}' {command}"
        answer = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, timeout=60)
        assert answer.stdout == promised, line
