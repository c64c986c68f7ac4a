"""A runtime whose answers are written in the prompts, for the engine's process without a model.

`EDGECHAT_RUNTIME=tests.edgechat.scripted_engine:load` has the host use it. A token is a byte, or a mark of
the chat template. What the model answers is in the person's last message, a list of commands:

    say TEXT              answers TEXT; it must be the last command
    count N               answers "0 1 2 ... "
    slow SECONDS          each token takes so long
    die SIGNAL at N       the process gets SIGNAL instead of the N-th token; SIGABRT with llama.cpp's words
    exit CODE at N        the process ends
    hang at N             the process neither works nor answers
    touch PATH at N       makes a file before the N-th token
    print TEXT            native code writes on both standard streams

separated by ";". A text without commands is echoed. A raw prompt is taken as a message where it ends in "=>".
The model's path may ask for trouble while it loads: "die SIGNAL", "exit CODE", "refuse", "bug", "hang",
"slow SECONDS"; "die SIGNAL unless safe" dies only where the GPU is used, "exit CODE until there" until
there is a file of that path.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from edgechat.errors import ResourceError
from edgechat.records import Capabilities, LoadSettings, ModelInfo
from edgechat.runtimes.base import Chunk, ContextFull, Logits, Wanted

USER, ASSISTANT, END = 256, 257, 258
MARKS = {USER: "<|user|>", ASSISTANT: "<|assistant|>", END: "<|end|>"}
N_VOCAB = 259
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' if m.role != 'system' else '<|user|>' }}"
    "{{ m.content }}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ScriptedTokenizer:
    """Bytes, and three marks."""

    n_vocab = N_VOCAB
    bos_id: int | None = None
    add_bos = False

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        tokens: list[int] = []
        while text:
            mark = next((id_ for id_, name in MARKS.items() if special and text.startswith(name)), None)
            if mark is None:
                tokens.extend(text[0].encode())
                text = text[1:]
            else:
                tokens.append(mark)
                text = text[len(MARKS[mark]) :]
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def name(self, token: int) -> str:
        return MARKS.get(token) or chr(token)


class ScriptedRuntime:
    """Continues each sequence as its last message says."""

    def __init__(self, settings: LoadSettings) -> None:
        self.can = Capabilities(shift=True, rollback=-1, fork=True)
        self.tokenizer = ScriptedTokenizer()
        self.n_ctx = settings.n_ctx or 8192
        self.n_batch = settings.n_batch
        self.n_sequences = settings.n_sequences
        self.info = ModelInfo(
            name="scripted",
            path=settings.path,
            architecture="scripted",
            quantization="none",
            n_vocab=N_VOCAB,
            n_layers=1,
            n_ctx_train=8192,
            n_ctx=self.n_ctx,
            n_params=1,
            size_bytes=1,
            kv_bytes_per_token=1,
            eog_ids=(END,),
            chat_template=None if "base" in settings.path else TEMPLATE,
            can=self.can,
            backend="CPU",
            n_gpu_layers=settings.n_gpu_layers,
            n_threads=1,
            fingerprint="scripted",
        )
        self._sequences: dict[int, list[int]] = {i: [] for i in range(self.n_sequences)}

    def decode(self, batch: Sequence[Chunk]) -> Logits:
        if sum(map(len, self._sequences.values())) + sum(len(c.tokens) for c in batch) > self.n_ctx:
            raise ContextFull
        rows = []
        for chunk in batch:
            tokens = self._sequences[chunk.sequence]
            assert chunk.start == len(tokens)
            for i, token in enumerate(chunk.tokens):
                tokens.append(token)
                last = i == len(chunk.tokens) - 1
                if chunk.logits is Wanted.ALL or (last and chunk.logits is Wanted.LAST):
                    row = np.full(N_VOCAB, -100.0, np.float32)
                    row[next_token(tokens)] = 100.0
                    rows.append(row)
        return np.stack(rows) if rows else np.zeros((0, N_VOCAB), np.float32)

    def length(self, sequence: int) -> int:
        return len(self._sequences[sequence])

    def truncate(self, sequence: int, length: int) -> None:
        del self._sequences[sequence][length:]

    def evict(self, sequence: int, start: int, stop: int) -> None:
        del self._sequences[sequence][start:stop]

    def fork(self, parent: int, child: int, length: int) -> None:
        self._sequences[child] = self._sequences[parent][:length]

    def free(self, sequence: int) -> None:
        self._sequences[sequence] = []

    def export_state(self, sequence: int) -> bytes:
        return np.array(self._sequences[sequence], dtype=np.int32).tobytes()

    def import_state(self, sequence: int, state: bytes) -> None:
        self._sequences[sequence] = np.frombuffer(state, dtype=np.int32).tolist()

    def set_threads(self, n_decode: int, n_prefill: int) -> None:
        pass

    def close(self) -> None:
        pass


def next_token(tokens: list[int]) -> int:
    """What follows: a function of the tokens alone. Trouble that was ordered comes about."""
    message, generated = split(tokens)
    for command in message.split(";"):
        match command.split():
            case ["slow", seconds]:
                time.sleep(float(seconds))
            case ["die", name, "at", n] if int(n) == generated:
                die(name)
            case ["exit", code, "at", n] if int(n) == generated:
                os._exit(int(code))
            case ["hang", "at", n] if int(n) == generated:
                time.sleep(3600)
            case ["touch", path, "at", n] if int(n) == generated:
                Path(path).touch()
            case ["print", *words] if generated == 0:
                os.write(1, " ".join(words).encode())
                os.write(2, " ".join(words).encode())
    reply = reply_to(message).encode()
    return reply[generated] if generated < len(reply) else END


def split(tokens: list[int]) -> tuple[str, int]:
    """The last message, and how many tokens of its answer there are."""
    if ASSISTANT in tokens:
        at = len(tokens) - 1 - tokens[::-1].index(ASSISTANT)
        before = tokens[:at]
        start = len(before) - before[::-1].index(USER) if USER in before else 0
        message = [token for token in before[start:] if token < 256]
        return bytes(message).decode("utf-8", "replace"), len(tokens) - at - 1
    text = bytes(token for token in tokens if token < 256)
    message_bytes, found, answer = text.rpartition(b"=>")
    return (message_bytes.decode("utf-8", "replace"), len(answer)) if found else (text.decode(), 0)


def reply_to(message: str) -> str:
    """The whole answer to a message."""
    for command in message.split(";"):
        words = command.split()
        if words[:1] == ["count"]:
            return "".join(f"{i} " for i in range(int(words[1])))
        if words[:1] == ["say"]:
            return message.split("say ", 1)[1]
    return message


def die(name: str) -> None:
    """End of a signal, with what llama.cpp and the C library would write."""
    if name == "SIGABRT":
        os.write(2, b"/src/ggml/src/ggml.c:123: GGML_ASSERT(n_tokens > 0) failed\n")
        os.abort()
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)


def load(settings: LoadSettings, progress: Callable[[float], bool]) -> ScriptedRuntime:
    """What the host calls in place of llama.cpp."""
    words = Path(settings.path).name.split()
    progress(0.5)
    match words:
        case ["die", name, "unless", "safe"] if settings.n_gpu_layers != 0:
            die(name)
        case ["die", name]:
            die(name)
        case ["exit", code]:
            os._exit(int(code))
        case ["exit", code, "until", "there"] if not Path(settings.path).exists():
            os._exit(int(code))
        case ["refuse"]:
            raise ResourceError("the model needs 12 GB and 3 GB are free: choose a smaller one")
        case ["bug"]:
            raise ZeroDivisionError("division by zero")
        case ["slow", seconds]:
            time.sleep(float(seconds))
        case ["hang"]:
            time.sleep(3600)
    progress(1.0)
    return ScriptedRuntime(settings)
