"""What went wrong in llama.cpp, from its log, as an error for people."""

import re

from edgechat.errors import BrokenModelError, EdgechatError, ResourceError, UnsupportedError
from edgechat.runtimes.llamacpp.logs import Log

NO_MEMORY = re.compile(
    r"unable to allocate|failed to allocate|out of memory|bad_alloc|failed to reserve|alloc.* failed"
    r"|not enough memory|failed to initialize .* backend",
    re.IGNORECASE,
)
UNSUPPORTED = re.compile(
    r"unknown model architecture|unsupported model architecture|unknown pre-tokenizer|unknown tokenizer"
    r"|cannot be used as main model|requires ctx_other|V cache quantization|requires flash_attn"
    r"|does not divide|not supported",
    re.IGNORECASE,
)


def explain(log: Log, name: str) -> EdgechatError:
    """The error that a failed load or a failed context amounts to.

    Args:
        log: what llama.cpp logged.
        name: the model's, for the message.
    """
    reason = log.last_error()
    text = f"{name}: {reason or 'llama.cpp gave no reason'}"
    if NO_MEMORY.search(reason):
        return ResourceError(f"not enough memory for {text}")
    if any(UNSUPPORTED.search(line) for line in [reason, *log.errors]):
        return UnsupportedError(f"llama.cpp can't run {text}")
    return BrokenModelError(f"llama.cpp can't load {text}")
