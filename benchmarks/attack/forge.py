"""Data sets and runs changed by hand, whose digests were made to fit, as nobody but a test, or a forger, would do."""

import json
from pathlib import Path
from typing import Any

from paml.data.dataset import Manifest
from paml.files import listed
from paml.training import checkpoint
from paml.training.run import WEIGHTS, RunSettings, companions, write_settings


def forge(folder: Path, *, fingerprint: bool = False, **changes: Any) -> Path:
    """Record the files of a data set as they are, change the manifest, and seal it; with its fingerprint, or not."""
    file = folder / "manifest.json"
    values = {**json.loads(file.read_text()), **changes}
    values["files"] = {name: listed(folder / name).model_dump() for name in values["files"]}
    manifest = Manifest.model_validate(values)
    if fingerprint:
        manifest = manifest.model_copy(update={"fingerprint": manifest.computed_fingerprint()})
    manifest = manifest.model_copy(update={"seal": manifest.computed_seal()})
    file.write_text(manifest.model_dump_json(indent=1) + "\n")
    return folder


def forge_run(folder: Path, **changes: Any) -> Path:
    """Record the files of a run as they are now; change its settings, and make the weights belong to them."""
    values = json.loads((folder / "settings.json").read_text())
    values["recipe"] |= changes.pop("recipe", {})
    settings = RunSettings.model_validate({**values, **changes})
    write_settings(folder, settings)
    tensors = checkpoint.load(folder / WEIGHTS).tensors
    checkpoint.save(folder / WEIGHTS, tensors, {"identity": settings.identity(), "files": companions(folder)})
    file = folder / "preference.safetensors"
    if file.exists():
        found = checkpoint.load(file)
        seal = [settings.identity(), checkpoint.load(folder / WEIGHTS).digest]
        own = found.values["parts"][0] == found.values["parts"][1]
        parts = [seal, seal if own else found.values["parts"][1]]
        checkpoint.save(file, found.tensors, {**found.values, "parts": parts})
    return folder
