"""Where a training runs: the CPU, or a GPU."""

import torch

from paml.errors import SettingsError


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:  # the last two: no such backend here
        raise SettingsError(
            f"device '{name}' cannot be used ({str(error).partition(chr(10))[0]})", remedy="use cpu"
        ) from None
    return device
