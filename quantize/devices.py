"""What is computed with: cores, a GPU."""

import os

from quantize.errors import NoSuchDevice


def usable_device(name: str) -> str:
    """The device of that name.

    Args:
        name: "cpu", "cuda", "mps", or "auto": a GPU where there is one.

    Raises:
        NoSuchDevice: this machine, or its torch, has none.
    """
    if name == "cpu":
        return name
    try:
        import torch
    except ImportError:
        return "cpu"  # that torch is missing is said when it is needed
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next((device for device, found in there.items() if found), "cpu")
    if not there.get(name, False):
        raise NoSuchDevice(f"--device {name}: torch finds no such device here: --device cpu works")
    return name


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
