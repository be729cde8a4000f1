"""The commands that use a trained run: parse, call, render."""

import typer

serve_app = typer.Typer()
