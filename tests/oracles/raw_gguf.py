"""Writes GGUF files byte by byte, so that each byte can be a wrong one.

It shares no code with what it is used to test. `tests/models/test_gguf.py` compares what it writes with the
gguf package's own writer.
"""

import random
import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}
TYPE_F32, TYPE_F16, TYPE_Q4_0 = 0, 1, 2
BYTES_PER_ROW_OF_32 = {TYPE_F32: 128, TYPE_F16: 64, TYPE_Q4_0: 18}


def text(value: str | bytes) -> bytes:
    """A string as GGUF writes it: length, bytes."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: object) -> bytes:
    """A value that is no array."""
    return text(value) if isinstance(value, str | bytes) else struct.pack("<" + FORMATS[kind], value)


def array(kind: int, values: list, count: int | None = None) -> bytes:
    """An array; `count` is what it claims to have."""
    head = struct.pack("<IQ", kind, len(values) if count is None else count)
    return head + b"".join(scalar(kind, value) for value in values)


@dataclass
class Tensor:
    """A tensor's description; `None` is worked out."""

    name: str | bytes
    shape: tuple[int, ...]
    kind: int = TYPE_F32
    offset: int | None = None
    n_dims: int | None = None

    def n_bytes(self) -> int:
        rows = 1
        for size in self.shape[1:]:
            rows *= size
        return rows * (self.shape[0] * BYTES_PER_ROW_OF_32[self.kind] // 32)


@dataclass
class File:
    """A whole file, of which each part can be replaced."""

    fields: list[tuple[str | bytes, int, bytes]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_fields: int | None = None
    alignment: int = 32

    def put(self, key: str, kind: int, value: object) -> "File":
        """Set a value in place of the old one, or at the end."""
        raw = value if kind == ARRAY else scalar(kind, value)
        assert isinstance(raw, bytes)
        for index, entry in enumerate(self.fields):
            if entry[0] == key:
                self.fields[index] = (key, kind, raw)
                return self
        self.fields.append((key, kind, raw))
        return self

    def drop(self, key: str) -> "File":
        """Leave a key out."""
        self.fields = [entry for entry in self.fields if entry[0] != key]
        return self

    def tensor(self, name: str) -> Tensor:
        """A tensor by its name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def header(self) -> bytes:
        """All before the data, its padding included."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_fields = len(self.fields) if self.n_fields is None else self.n_fields
        out = [self.magic, struct.pack("<IQQ", self.version, n_tensors, n_fields)]
        for key, kind, raw in self.fields:
            out += [text(key), struct.pack("<I", kind), raw]
        offset = 0
        for tensor in self.tensors:
            n_dims = len(tensor.shape) if tensor.n_dims is None else tensor.n_dims
            out += [text(tensor.name), struct.pack("<I", n_dims)]
            out += [struct.pack(f"<{len(tensor.shape)}Q", *(size % 2**64 for size in tensor.shape))]
            out += [struct.pack("<IQ", tensor.kind, offset if tensor.offset is None else tensor.offset)]
            if tensor.kind in BYTES_PER_ROW_OF_32 and tensor.offset is None:
                offset += -(-tensor.n_bytes() // self.alignment) * self.alignment
        raw = b"".join(out)
        return raw + bytes(-len(raw) % self.alignment)

    def data(self, seed: int = 0) -> bytes:
        """Weights: small float32 numbers."""
        numbers = random.Random(seed)
        out = []
        for tensor in self.tensors:
            if tensor.kind != TYPE_F32:
                out.append(bytes(-(-tensor.n_bytes() // self.alignment) * self.alignment))
                continue
            count = tensor.n_bytes() // 4
            out.append(struct.pack(f"<{count}f", *(numbers.uniform(-0.1, 0.1) for _ in range(count))))
            out.append(bytes(-(4 * count) % self.alignment))
        return b"".join(out)


LAYERS, WIDTH, HEADS, KV_HEADS, FF = 2, 64, 4, 2, 96


def tiny_llama(tokenizer: str = "llama", architecture: str = "llama", experts: int = 0) -> File:
    """A model of two layers that llama.cpp loads: a few hundred tokens, `WIDTH` numbers each.

    Args:
        tokenizer: "llama" (SentencePiece with byte tokens) or "gpt2" (BPE).
        architecture: "llama", "qwen2" or "gemma3".
        experts: 0 for a dense model.
    """
    tokens, scores, types, merges = _spm_tokens() if tokenizer == "llama" else _bpe_tokens()
    file = File()
    file.put("general.architecture", STRING, architecture)
    file.put("general.name", STRING, "Tiny")
    prefix = architecture + "."
    for key, value in (
        ("block_count", LAYERS),
        ("context_length", 512),
        ("embedding_length", WIDTH),
        ("feed_forward_length", FF),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("rope.dimension_count", WIDTH // HEADS),
    ):
        file.put(prefix + key, U32, value)
    file.put(prefix + "attention.layer_norm_rms_epsilon", F32, 1e-5)
    file.put(prefix + "rope.freq_base", F32, 10000.0)
    if architecture == "gemma3":
        file.put(prefix + "attention.sliding_window", U32, 64)
        file.put(prefix + "attention.key_length", U32, WIDTH // HEADS)
        file.put(prefix + "attention.value_length", U32, WIDTH // HEADS)
    if experts:
        file.put(prefix + "expert_count", U32, experts)
        file.put(prefix + "expert_used_count", U32, 2)
    file.put("tokenizer.ggml.model", STRING, tokenizer)
    if tokenizer == "gpt2":
        file.put("tokenizer.ggml.pre", STRING, "gpt-2")
    file.put("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens))
    if scores:
        file.put("tokenizer.ggml.scores", ARRAY, array(F32, scores))
    file.put("tokenizer.ggml.token_type", ARRAY, array(I32, types))
    if merges:
        file.put("tokenizer.ggml.merges", ARRAY, array(STRING, merges))
    file.put("tokenizer.ggml.bos_token_id", U32, 1)
    file.put("tokenizer.ggml.eos_token_id", U32, 2)
    file.put("tokenizer.ggml.unknown_token_id", U32, 0)
    file.put(
        "tokenizer.chat_template", STRING, "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    )
    file.tensors = _tensors(len(tokens), architecture, experts)
    return file


def _tensors(n_tokens: int, architecture: str, experts: int) -> list[Tensor]:
    head = WIDTH // HEADS
    tensors = [Tensor("token_embd.weight", (WIDTH, n_tokens)), Tensor("output_norm.weight", (WIDTH,))]
    for layer in range(LAYERS):
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH, head * KV_HEADS),
            "attn_v": (WIDTH, head * KV_HEADS),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
        }
        if experts:
            shapes |= {
                "ffn_gate_inp": (WIDTH, experts),
                "ffn_gate_exps": (WIDTH, FF, experts),
                "ffn_down_exps": (FF, WIDTH, experts),
                "ffn_up_exps": (WIDTH, FF, experts),
            }
        else:
            shapes |= {"ffn_gate": (WIDTH, FF), "ffn_down": (FF, WIDTH), "ffn_up": (WIDTH, FF)}
        if architecture == "gemma3":
            shapes |= {
                "post_attention_norm": (WIDTH,),
                "attn_q_norm": (head,),
                "attn_k_norm": (head,),
                "post_ffw_norm": (WIDTH,),
            }
        tensors += [Tensor(f"blk.{layer}.{name}.weight", shape) for name, shape in shapes.items()]
        if architecture == "qwen2":
            tensors += [
                Tensor(f"blk.{layer}.attn_q.bias", (WIDTH,)),
                Tensor(f"blk.{layer}.attn_k.bias", (head * KV_HEADS,)),
                Tensor(f"blk.{layer}.attn_v.bias", (head * KV_HEADS,)),
            ]
    return tensors


Vocabulary = tuple[list[str], list[float], list[int], list[str]]


def _spm_tokens() -> Vocabulary:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3, *[6] * 256]
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "▁th", "th", "he", "in", "▁the", "er"]
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(words))]
    return tokens + words, scores, types + [1] * len(words), []


def _bpe_tokens() -> Vocabulary:
    """The 256 characters that stand for bytes in GPT-2's alphabet, and a few merges."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(byte) for byte in printable]
    letters += [chr(0x100 + rank) for rank in range(256 - len(printable))]
    merges = ["t h", "th e", "i n", "Ġ t"]
    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *letters,
        *(merge.replace(" ", "") for merge in merges),
    ]
    return tokens, [], [3, 3, 3, *[1] * (len(tokens) - 3)], merges
