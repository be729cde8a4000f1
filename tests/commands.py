"""`paml` on the command line: in this process, which saves the seconds that imports take, or in one of its own."""

import io
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import torch

from paml.cli import main

Done = subprocess.CompletedProcess[str]


def run(*arguments: object, cwd: Path | None = None) -> Done:
    """The command's exit code and what it wrote; signals and threads of this process stay as they are."""
    command = ["paml", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    threads, code = torch.get_num_threads(), 0
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with chdir(cwd or Path.cwd()), redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", command):
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        torch.set_num_threads(threads)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Done(command, code, out.getvalue(), err.getvalue())


def run_process(*arguments: object, cwd: Path | None = None) -> Done:
    """The same as people have it: a process of its own."""
    command = [sys.executable, "-m", "paml", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
