"""Sound GGUF headers with values that can't be: numbers of the architecture, and tokens."""

import math
from collections.abc import Callable

from tests.oracles.gguf_changes import ANY, BROKEN, N_TOKENS, UNSUPPORTED, Cases, Change, put
from tests.oracles.raw_gguf import (
    ARRAY,
    BOOL,
    F32,
    HEADS,
    I32,
    KV_HEADS,
    LAYERS,
    STRING,
    U8,
    U32,
    U64,
    WIDTH,
    File,
    array,
)


def _llama(name: str, value: int | float) -> Change:
    return put(f"llama.{name}", U32 if isinstance(value, int) else F32, value)


NUMBERS: Cases = {
    "architecture-missing": (BROKEN, lambda file: file.drop("general.architecture")),
    "architecture-empty": (BROKEN, put("general.architecture", STRING, "")),
    "architecture-no-name": (BROKEN, put("general.architecture", STRING, "\0\0ama")),
    "architecture-number": (BROKEN, put("general.architecture", U32, 1)),
    "architecture-unknown": (UNSUPPORTED, put("general.architecture", STRING, "llama99")),
    "architecture-image-encoder": (UNSUPPORTED, put("general.architecture", STRING, "clip")),
    "architecture-other": (BROKEN, put("general.architecture", STRING, "qwen2")),
    "layers-missing": (BROKEN, lambda file: file.drop("llama.block_count")),
    "layers-0": (BROKEN, _llama("block_count", 0)),
    "layers-513": (BROKEN, _llama("block_count", 513)),
    "layers-2^32-1": (BROKEN, _llama("block_count", 2**32 - 1)),
    "layers-one-more": (BROKEN, _llama("block_count", LAYERS + 1)),
    "layers-one-less": (BROKEN, _llama("block_count", LAYERS - 1)),
    "layers-text": (BROKEN, put("llama.block_count", STRING, "2")),
    "layers-u64": (BROKEN, put("llama.block_count", U64, 2)),
    "layers-array": (BROKEN, put("llama.block_count", ARRAY, array(U32, [2]))),
    "context-0": (BROKEN, _llama("context_length", 0)),
    "context-2^32-1": (BROKEN, _llama("context_length", 2**32 - 1)),
    "context-missing": (BROKEN, lambda file: file.drop("llama.context_length")),
    "feed-forward-1": (BROKEN, _llama("feed_forward_length", 1)),
    "width-0": (BROKEN, _llama("embedding_length", 0)),
    "width-2^31": (BROKEN, _llama("embedding_length", 2**31)),
    "width-other": (BROKEN, _llama("embedding_length", 2 * WIDTH)),
    "width-float": (BROKEN, _llama("embedding_length", 64.0)),
    "feed-forward-2^31": (BROKEN, _llama("feed_forward_length", 2**31)),
    "feed-forward-of-one-layer": (BROKEN, put("llama.feed_forward_length", ARRAY, array(U32, [96]))),
    "heads-0": (BROKEN, _llama("attention.head_count", 0)),
    "heads-3": (BROKEN, _llama("attention.head_count", 3)),
    "heads-2^31": (BROKEN, _llama("attention.head_count", 2**31)),
    "heads-missing": (BROKEN, lambda file: file.drop("llama.attention.head_count")),
    "heads-of-three-layers": (BROKEN, put("llama.attention.head_count", ARRAY, array(U32, [4, 4, 4]))),
    "heads-one-layer-0": (BROKEN, put("llama.attention.head_count", ARRAY, array(U32, [HEADS, 0]))),
    "heads-negative": (BROKEN, put("llama.attention.head_count", ARRAY, array(I32, [HEADS, -1]))),
    "heads-texts": (BROKEN, put("llama.attention.head_count", ARRAY, array(STRING, ["4", "4"]))),
    "heads-bools": (BROKEN, put("llama.attention.head_count", ARRAY, array(BOOL, [True, True]))),
    "kv-heads-0": (BROKEN, _llama("attention.head_count_kv", 0)),
    "kv-heads-3": (BROKEN, _llama("attention.head_count_kv", 3)),
    "kv-heads-8": (BROKEN, _llama("attention.head_count_kv", 2 * HEADS)),
    "kv-heads-one-layer-3": (BROKEN, put("llama.attention.head_count_kv", ARRAY, array(U32, [KV_HEADS, 3]))),
    "keys-0": (BROKEN, _llama("attention.key_length", 0)),
    "keys-2^31": (BROKEN, _llama("attention.key_length", 2**31)),
    "keys-wider-than-values": (BROKEN, _llama("attention.key_length", 32)),
    "values-wider-than-keys": (BROKEN, _llama("attention.value_length", 32)),
    "rotation-0": (BROKEN, _llama("rope.dimension_count", 0)),
    "rotation-odd": (BROKEN, _llama("rope.dimension_count", 15)),
    "rotation-wider-than-head": (BROKEN, _llama("rope.dimension_count", 64)),
    "rotation-narrower-than-head": (BROKEN, _llama("rope.dimension_count", 8)),
    "scaling-unknown": (BROKEN, put("llama.rope.scaling.type", STRING, "su")),
    "scaling-empty": (BROKEN, put("llama.rope.scaling.type", STRING, "")),
    "scaling-number": (BROKEN, put("llama.rope.scaling.type", U32, 1)),
    "scaling-factor-nan": (BROKEN, _llama("rope.scaling.factor", math.nan)),
    "scaling-factor-tiny": (BROKEN, _llama("rope.scaling.factor", 1e-39)),
    "scaling-factor-negative": (BROKEN, _llama("rope.scaling.factor", -2.0)),
    "scaling-context-0": (BROKEN, _llama("rope.scaling.original_context_length", 0)),
    "base-0": (BROKEN, _llama("rope.freq_base", 0.0)),
    "base-tiny": (BROKEN, _llama("rope.freq_base", 1e-44)),
    "base-negative": (BROKEN, _llama("rope.freq_base", -1.0)),
    "base-nan": (BROKEN, _llama("rope.freq_base", math.nan)),
    "base-infinite": (BROKEN, _llama("rope.freq_base", math.inf)),
    "base-integer": (BROKEN, _llama("rope.freq_base", 10_000)),
    "attention-scale-nan": (BROKEN, _llama("attention.scale", math.nan)),
    "logit-scale-infinite": (BROKEN, _llama("logit_scale", math.inf)),
    "capping-huge": (BROKEN, _llama("attn_logit_softcapping", 1e38)),
    "epsilon-nan": (BROKEN, _llama("attention.layer_norm_rms_epsilon", math.nan)),
    "epsilon-negative": (BROKEN, _llama("attention.layer_norm_rms_epsilon", -1e-5)),
    "epsilon-infinite": (BROKEN, _llama("attention.layer_norm_rms_epsilon", math.inf)),
    "experts-used-of-none": (BROKEN, _llama("expert_used_count", 2)),
    "experts-groups-of-none": (BROKEN, _llama("expert_group_count", 2)),
    "next-token-layers-all": (BROKEN, _llama("nextn_predict_layers", LAYERS)),
    "next-token-layers-2^31": (BROKEN, _llama("nextn_predict_layers", 2**31)),
}
EXPERTS: Cases = {
    "1025": (BROKEN, _llama("expert_count", 1025)),
    "2^32-1": (BROKEN, _llama("expert_count", 2**32 - 1)),
    "none-used": (BROKEN, _llama("expert_used_count", 0)),
    "more-used-than-there-are": (BROKEN, _llama("expert_used_count", 5)),
    "used-2^32-1": (BROKEN, _llama("expert_used_count", 2**32 - 1)),
    "used-missing": (BROKEN, lambda file: file.drop("llama.expert_used_count")),
    "groups-all": (BROKEN, _llama("expert_group_count", 4)),
    "groups-3": (BROKEN, _llama("expert_group_count", 3)),
    "groups-none-used": (BROKEN, _llama("expert_group_count", 2)),
    "count-text": (BROKEN, put("llama.expert_count", STRING, "4")),
}


def _texts(change: Callable[[list[str | bytes]], object]) -> Change:
    """Change the tiny model's tokens."""

    def apply(file: File) -> None:
        tokens: list[str | bytes] = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        tokens += [f"word{number}" for number in range(N_TOKENS - len(tokens))]
        change(tokens)
        file.put("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens))

    return apply


def _token(number: int, value: str | bytes) -> Change:
    return _texts(lambda tokens: tokens.__setitem__(number, value))


def _ggml(name: str, kind: int, value: object) -> Change:
    return put(f"tokenizer.ggml.{name}", kind, value)


TOKENS: Cases = {
    "model-missing": (BROKEN, lambda file: file.drop("tokenizer.ggml.model")),
    "model-number": (BROKEN, _ggml("model", U32, 1)),
    "model-unknown": (UNSUPPORTED, _ggml("model", STRING, "llama99")),
    "model-none": (UNSUPPORTED, _ggml("model", STRING, "none")),
    "list-missing": (BROKEN, lambda file: file.drop("tokenizer.ggml.tokens")),
    "list-empty": (BROKEN, _ggml("tokens", ARRAY, array(STRING, []))),
    "list-of-numbers": (BROKEN, _ggml("tokens", ARRAY, array(U32, list(range(N_TOKENS))))),
    "list-is-text": (BROKEN, _ggml("tokens", STRING, "a")),
    "list-one-less": (BROKEN, _texts(list.pop)),
    "list-one-more": (BROKEN, _texts(lambda tokens: tokens.append("more"))),
    "scores-short": (BROKEN, _ggml("scores", ARRAY, array(F32, [0.0] * 10))),
    "scores-long": (BROKEN, _ggml("scores", ARRAY, array(F32, [0.0] * 1000))),
    "scores-of-bytes": (BROKEN, _ggml("scores", ARRAY, array(U8, [0] * N_TOKENS))),
    "scores-of-texts": (BROKEN, _ggml("scores", ARRAY, array(STRING, [""] * N_TOKENS))),
    "scores-number": (BROKEN, _ggml("scores", F32, 0.0)),
    "scores-nan": (BROKEN, _ggml("scores", ARRAY, array(F32, [math.nan] * N_TOKENS))),
    "types-short": (BROKEN, _ggml("token_type", ARRAY, array(I32, [1] * 10))),
    "types-long": (BROKEN, _ggml("token_type", ARRAY, array(I32, [1] * 1000))),
    "types-of-floats": (BROKEN, _ggml("token_type", ARRAY, array(F32, [1.0] * N_TOKENS))),
    "types-unknown": (BROKEN, _ggml("token_type", ARRAY, array(I32, [99] * N_TOKENS))),
    "types-all-bytes": (BROKEN, _ggml("token_type", ARRAY, array(I32, [6] * N_TOKENS))),
    "byte-minus-1": (BROKEN, _token(20, "<0x-1>")),
    "byte-not-hex": (BROKEN, _token(20, "<0xZZ>")),
    "byte-short": (BROKEN, _token(20, "<0x4>")),
    "byte-long": (BROKEN, _token(20, "<0x4141>")),
    "byte-lower-case": (BROKEN, _token(0xAF + 3, "<0xaf>")),
    "byte-empty": (BROKEN, _token(20, "")),
    "byte-line-break": (BROKEN, _token(20, "<0x11>\n")),
    "twice": (BROKEN, _token(280, "word0")),
    "twice-to-c": (BROKEN, _token(280, b"word0\x00tail")),
    "twice-by-their-numbers": (
        BROKEN,
        _texts(lambda tokens: tokens.__setitem__(slice(280, 282), ["", "[EMPTY_280]"])),
    ),
    "very-long": (BROKEN, _token(280, "x" * 70_000)),
    "bos-out-of-range": (BROKEN, _ggml("bos_token_id", U32, N_TOKENS)),
    "eos-out-of-range": (BROKEN, _ggml("eos_token_id", U32, 2**31)),
    "eot-minus-1": (BROKEN, _ggml("eot_token_id", U32, 2**32 - 1)),
    "unknown-out-of-range": (BROKEN, _ggml("unknown_token_id", U32, 10**6)),
    "padding-text": (BROKEN, _ggml("padding_token_id", STRING, "</s>")),
    "eos-signed": (BROKEN, _ggml("eos_token_id", I32, -1)),
    "fim-out-of-range": (BROKEN, _ggml("fim_pre_token_id", U32, N_TOKENS + 5)),
    "template-over-1-mib": (BROKEN, put("tokenizer.chat_template", STRING, "x" * (2**20 + 1))),
    "template-number": (BROKEN, put("tokenizer.chat_template", U32, 1)),
    "named-template-over-1-mib": (
        BROKEN,
        put("tokenizer.chat_template.tool_use", STRING, "x" * (2**20 + 1)),
    ),
    "pre-number": (BROKEN, _ggml("pre", U32, 1)),
}
BPE: Cases = {
    "merges-missing": (BROKEN, lambda file: file.drop("tokenizer.ggml.merges")),
    "merges-of-numbers": (BROKEN, _ggml("merges", ARRAY, array(U32, [1]))),
    "merges-text": (BROKEN, _ggml("merges", STRING, "a b")),
    "pre-unknown": (UNSUPPORTED, _ggml("pre", STRING, "qwen99")),
    "heads-3": (BROKEN, put("qwen2.attention.head_count", U32, 3)),
    "keys-63": (BROKEN, put("qwen2.attention.key_length", U32, 63)),
    "rotation-2": (BROKEN, put("qwen2.rope.dimension_count", U32, 2)),
    "byte-token-of-another-kind": (
        BROKEN,
        lambda file: file.put("tokenizer.ggml.token_type", ARRAY, array(I32, [3, 3, 3, 6, *[1] * 259])),
    ),
}
GEMMA: Cases = {
    "window-0": (BROKEN, put("gemma3.attention.sliding_window", U32, 0)),
    "window-2^32-1": (BROKEN, put("gemma3.attention.sliding_window", U32, 2**32 - 1)),
    "window-text": (BROKEN, put("gemma3.attention.sliding_window", STRING, "512")),
    "keys-17": (ANY, put("gemma3.attention.key_length", U32, 17)),
    "base-of-windows-0": (BROKEN, put("gemma3.rope.freq_base_swa", F32, 0.0)),
}
