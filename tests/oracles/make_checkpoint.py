"""Has transformers make a checkpoint of a GGUF file: `python -m tests.oracles.make_checkpoint FILE OUT`.

In a process of its own: it takes a gigabyte of memory, and warns of much.
"""

import subprocess
import sys
from pathlib import Path

from filelock import FileLock

FINISHED = "finished"


def made(source: Path, folder: Path) -> Path:
    """The checkpoint in bfloat16, made now if it is not there yet. Processes of one test run wait."""
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / FINISHED).is_file():
            command = [sys.executable, "-m", "tests.oracles.make_checkpoint", str(source), str(folder)]
            root = Path(__file__).parents[2]
            subprocess.run(command, check=True, capture_output=True, cwd=root, timeout=3000)
            (folder / FINISHED).touch()
    return folder


def main(source: Path, folder: Path) -> None:
    """Make it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tests.oracles.make_checkpoint FILE.gguf FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
