"""GPTQ, AWQ and INT8 checkpoints as models that run: their integers in a GGUF file in the cache, made once.
Where no type of GGUF file holds these, it has eight bits.

Made by `edgechat quantize` in a process of its own, which holds the weights and may crash.
"""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from edgechat import paths
from edgechat.errors import EdgechatError, ExitCode, UnsupportedError
from edgechat.library.lock import exclusive

METHODS = frozenset({"gptq", "awq", "compressed-tensors"})


def is_packed(folder: Path) -> bool:
    """Whether it is a checkpoint that is quantized already, and holds no GGUF file besides."""
    if not (folder / "config.json").is_file() or any(folder.glob("*.gguf")):
        return False
    from models.errors import ModelError
    from models.packed_settings import quantization

    try:
        return quantization(folder).get("quant_method") in METHODS
    except (OSError, ModelError):
        return False


def repacked(folder: Path, told: Callable[[str], None] | None = None) -> Path:
    """The checkpoint as a GGUF file, made now if it isn't there or the checkpoint has changed.

    Args:
        folder: of the checkpoint.
        told: is given a line to say where it is made now; None: stderr.

    Raises:
        UnsupportedError: it can't be made; the message has the reason.
    """
    cache = paths.private_folder(paths.cache_dir() / "repacked")
    name = folder.resolve().name
    path = cache / f"{name}-{_fingerprint(folder)}.gguf"
    with exclusive(path.with_suffix(".lock"), lambda: None):
        if path.is_file():
            return path
        (told or _say)(f"{name}: packing its integers into a GGUF file, once: {path}")
        for old in cache.glob(f"{name}-{'?' * 16}.gguf"):
            old.unlink()
        done = _pack(folder, path)
        if done.returncode == ExitCode.UNSUPPORTED:  # as with desc_act, whose order GGUF has no place for
            done = _pack(folder, path, "--type", "q8_0")
            if not done.returncode:
                (told or _say)(f"{name}: no type of GGUF file holds its integers as they are: made of 8 bits")
        if done.returncode or not path.is_file():
            raise _failed(folder, done.stderr)
    return path


def _pack(folder: Path, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgechat", "quantize", str(folder.resolve()), "--to", "gguf"]
    return subprocess.run(
        [*command, *options, "-o", str(path), "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def _failed(folder: Path, said: str) -> EdgechatError:
    lines = [line for line in said.splitlines() if line.strip()]
    reason = lines[-1].removeprefix("edgechat: ") if lines else "its process was ended"
    return UnsupportedError(f"{folder} can't be packed into a GGUF file: {reason}")


def _fingerprint(folder: Path) -> str:
    """Of where it is, and of the names, sizes and times of its files."""
    digest = hashlib.sha256(str(folder.resolve()).encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in {".safetensors", ".json", ".jinja", ".model"} and path.is_file():
            stat = path.stat()
            digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
