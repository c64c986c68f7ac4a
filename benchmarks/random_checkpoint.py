"""A checkpoint of random weights in the shape of Llama 3.2 3B: to see in how much memory it quantizes.

    python benchmarks/random_checkpoint.py FOLDER --tokenizer FOLDER [--layers 28] [--hidden 3072]

Written are BF16 shards, one for each layer, in the memory of one matrix; the tokenizer is copied from another
checkpoint. Then, for instance:

    edgechat quantize FOLDER --to gptq --samples 8 --sequence-length 256 --no-eval --json
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quantize.formats.safetensors import Tensor, write_file, write_index
from quantize.tensors import to_bfloat16

VOCABULARY = 128_256
HEAD = 128
KV_HEADS = 8


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to; it must not be there yet")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with a tokenizer.json")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--inner", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(options.tokenizer / name, folder)
    (folder / "config.json").write_text(json.dumps(config(options), indent=2), encoding="utf-8")
    generator = np.random.default_rng(options.seed)
    shards = list(contents(options))
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shapes in zip(names, shards, strict=True):
        sys.stderr.write(f"\r{name} ")
        write_file(
            folder / name, {tensor: made(generator, shape) for tensor, shape in sorted(shapes.items())}
        )
    sys.stderr.write("\n")
    write_index(folder, names)


def config(options: argparse.Namespace) -> dict[str, object]:
    """As transformers has it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": options.hidden,
        "intermediate_size": options.inner,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.hidden // HEAD,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "max_position_embeddings": 8192,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def contents(options: argparse.Namespace) -> Iterator[dict[str, tuple[int, ...]]]:
    """The shapes of each shard's tensors."""
    hidden, inner, keys = options.hidden, options.inner, KV_HEADS * HEAD
    yield {"model.embed_tokens.weight": (VOCABULARY, hidden), "model.norm.weight": (hidden,)}
    matrices = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for index in range(options.layers):
        yield {f"model.layers.{index}.{name}.weight": shape for name, shape in matrices.items()}


def made(generator: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Random weights, each one of 65,536 normal numbers; norms of ones."""
    if len(shape) == 1:
        return Tensor(to_bfloat16(np.ones(shape, np.float32)), "BF16")
    drawn = to_bfloat16(generator.standard_normal(2**16, np.float32) * np.float32(0.02))
    values = np.empty(shape, np.uint16)
    for start in range(0, shape[0], 4096):
        rows = values[start : start + 4096]
        np.take(drawn, generator.integers(0, 2**16, rows.shape, np.uint16), out=rows)
    return Tensor(values, "BF16")


if __name__ == "__main__":
    main()
