"""ModelInfo of a loaded model."""

from pathlib import Path
from typing import Any

from edgechat.records import Capabilities, LoadSettings, ModelInfo
from edgechat.runtimes.llamacpp import abi
from edgechat.runtimes.llamacpp.header import meta
from edgechat.runtimes.llamacpp.load import Opened
from edgechat.runtimes.llamacpp.tokenizer import LlamaCppTokenizer

GUESSED = 1024
"""Bit of llama_ftype: the file doesn't say, llama.cpp took the commonest type of its tensors."""
MAX_NAME = 200


def describe(
    settings: LoadSettings,
    opened: Opened,
    *,
    n_ctx: int,
    can: Capabilities,
    tokenizer: LlamaCppTokenizer,
    fingerprint: str,
) -> ModelInfo:
    """All that is known of a model and of how it was loaded."""
    llama: Any = abi.llama()
    model = opened.model
    path = Path(settings.path)
    return ModelInfo(
        name=_printable(meta(model, "general.name") or "") or path.stem,
        path=str(path),
        architecture=_printable(meta(model, "general.architecture") or "") or "unknown",
        quantization=_quantization(llama, model),
        n_vocab=tokenizer.n_vocab,
        n_layers=llama.llama_model_n_layer(model),
        n_ctx_train=llama.llama_model_n_ctx_train(model),
        n_ctx=n_ctx,
        n_params=llama.llama_model_n_params(model),
        size_bytes=llama.llama_model_size(model),
        kv_bytes_per_token=opened.kv_bytes_per_token,
        eog_ids=tokenizer.eog_ids,
        chat_template=_template(llama, model),
        can=can,
        backend=", ".join(gpu.label for gpu in opened.gpus) or "CPU",
        n_gpu_layers=opened.n_gpu_layers,
        n_threads=opened.n_threads,
        fingerprint=fingerprint,
        mapped=opened.settings.use_mmap is not False,
        n_swa=max(0, llama.llama_model_n_swa(model)),
    )


def _quantization(llama: Any, model: int) -> str:
    ftype = llama.llama_model_ftype(model)
    name = llama.llama_ftype_name(ftype & ~GUESSED)
    return name.decode("utf-8", "replace") if name else f"type {ftype}"


def _template(llama: Any, model: int) -> str | None:
    """The chat template's Jinja source, None for none or nothing but white space."""
    template = (llama.llama_model_chat_template(model, None) or b"").decode("utf-8", "replace")
    return template if template.strip() else None


def _printable(text: str) -> str:
    """A name from a stranger's file, without control characters and line breaks."""
    return "".join(c for c in text if c.isprintable())[:MAX_NAME].strip()
