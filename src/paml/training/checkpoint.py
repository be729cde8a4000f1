"""Tensors and a few values in one safetensors file, written atomically and checked when read; nothing is unpickled.

The file is written here and not by the library, whose header has a random order and whose files only their owner may
read: equal tensors and values are equal files, byte by byte.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paml.errors import FormatError, PamlError
from paml.files import exists, open_regular, replacing

FORMAT = "paml-1"
AGAIN = "train again, or restore the file"
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's names of types; wider ones come first in a file, so that all tensors are aligned."""
MAX_HEADER = 1 << 26


class Checkpoint(NamedTuple):
    """What is in a file."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]
    digest: str
    """SHA-256 of both."""


def save(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and JSON-like values to one file, under a temporary name first; a digest covers both."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(values, sort_keys=True)
    header: dict[str, Any] = {
        "__metadata__": {"digest": _digest(tensors, text), "format": FORMAT, "values": text},
    }
    end = 0
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        header[name] = {"data_offsets": [start, end], "dtype": TYPES[tensor.dtype], "shape": list(tensor.shape)}
    head = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    try:
        with replacing(path) as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for name in order:
                file.write(_bytes(tensors[name]))
    except OSError as error:
        raise PamlError(f"cannot be written ({error})", where=path, remedy="check space and permissions") from None


def load(path: Path) -> Checkpoint:
    """Read what `save` wrote; a foreign, truncated or tampered file is a FormatError."""
    if not exists(path, AGAIN):
        raise FormatError("no such file", where=path, remedy=AGAIN)
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise FormatError(f"not a complete safetensors file ({error})", where=path, remedy=AGAIN) from None
    if metadata.get("format") != FORMAT:
        raise FormatError(f"has format {metadata.get('format')!r}, expected '{FORMAT}'", where=path, remedy=AGAIN)
    digest, text = metadata.get("digest", ""), metadata.get("values", "")
    if digest != _digest(tensors, text):
        raise FormatError("differs from its digest: it was changed", where=path, remedy=AGAIN)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise FormatError("has values that are not a JSON object", where=path, remedy=AGAIN)
    return Checkpoint(tensors, values, digest)


def _check_header(path: Path) -> None:
    """Compare the lengths that the file states with its size, before anything is allocated."""
    with open_regular(path, AGAIN) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise FormatError("not a complete safetensors file (its header)", where=path, remedy=AGAIN)
        try:
            header = json.loads(file.read(length).decode("utf-8"))
            ends = [_end(entry) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            raise FormatError("not a complete safetensors file (its header)", where=path, remedy=AGAIN) from None
    if max(ends, default=0) != size - 8 - length:
        raise FormatError("not a complete safetensors file (its length)", where=path, remedy=AGAIN)


def _end(entry: Mapping[str, Any]) -> int:
    """Where a tensor ends; its shape must not ask for more than is there."""
    start, end = entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (start, end, *entry["shape"])):
        raise ValueError("not a number of bytes")
    if math.prod(entry["shape"]) > end - start:
        raise ValueError("a shape beyond the file")
    return int(end)


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else memoryview(b"")


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 over names, types, shapes and bytes of the tensors, and the values."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()
