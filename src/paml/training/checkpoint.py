"""Tensors and a few values in one safetensors file, written atomically and checked when read; nothing is unpickled."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paml.errors import FormatError, PamlError

FORMAT = "paml-1"


def save(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and JSON-like values to one file, under a temporary name first; a digest covers both."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(values, sort_keys=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        save_file(tensors, partial, metadata={"format": FORMAT, "values": text, "digest": _digest(tensors, text)})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise PamlError(f"cannot be written ({error})", where=path, remedy="check space and permissions") from None
    partial.replace(path)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; a foreign, truncated or tampered file is a FormatError."""
    remedy = "train again, or restore the file"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FormatError("no such file", where=path, remedy=remedy) from None
    except (SafetensorError, OSError, ValueError) as error:
        raise FormatError(f"not a complete safetensors file ({error})", where=path, remedy=remedy) from None
    if metadata.get("format") != FORMAT:
        raise FormatError(f"has format {metadata.get('format')!r}, expected '{FORMAT}'", where=path, remedy=remedy)
    if metadata.get("digest") != _digest(tensors, metadata.get("values", "")):
        raise FormatError("differs from its digest: it was changed", where=path, remedy=remedy)
    values: dict[str, Any] = json.loads(metadata["values"])
    return tensors, values


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 over names, types, shapes and bytes of the tensors, and the values."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
