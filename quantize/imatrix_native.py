"""An importance matrix by llama.cpp, where there is no torch or the source is a GGUF file: a process of its
own, `python -m quantize.imatrix_native`, that runs the model over the calibration text.

What it sums up is what llama.cpp's own tool does: the squares of the inputs of each matrix. After each sample
the sums are kept, for a run that is stopped and goes on.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models import errors as model_errors
from models.amx import extra_buffers_work
from models.errors import BrokenModelFile, ModelError
from quantize import child
from quantize import errors as quantize_errors
from quantize.calibration import Samples, bundled, from_file, sample_length, samples
from quantize.errors import BadRequest, NativeFailure, QuantizeError

if TYPE_CHECKING:
    from models.chat_template.template import ChatTemplate
    from quantize.eval_callback import SquareSums
    from quantize.resume import Workspace

SIZES = {"llama_model_params": 80, "llama_context_params": 160, "llama_batch": 56}
"""Bytes of what crosses the border, in the llama.cpp that the bindings describe."""

LOGITS_BYTES = 2**28
"""llama.cpp keeps those of a whole batch twice, though nobody looks at them."""


@dataclass(frozen=True, slots=True)
class Order:
    """What shall be run over what."""

    model: str
    """A GGUF file."""
    output: str
    """The importance matrix, which is written there."""
    calibration: str | None
    """A text file or JSONL; None: the mix that comes with edgechat."""
    samples: int
    length: int
    threads: int
    self_seed: int | None = None
    """The model writes the text itself, with this seed; None: it does not."""
    kv_bytes: int = 0
    """That a token's keys and values take: so many texts are written at once as there is room for."""
    run: str | None = None
    """The output of a run whose workspace keeps what is done; None: nothing is kept."""
    done: int = 0
    """Samples that are kept there, at least."""


@dataclass(frozen=True, slots=True)
class Told:
    """Where it is."""

    done: int
    """Samples."""
    total: int
    n_chat: int
    """Samples in the chat template."""
    source: str
    """The text's name."""
    sha256: str
    """Of the text."""


def collect(
    order: Order, tell: Callable[[Told], None], written: Callable[[float], None] = lambda share: None
) -> None:
    """Run the model over the text, and have the importance matrix written.

    Args:
        order: what shall be done.
        tell: is told of each sample.
        written: is told how much of a text of the model's own is there, from 0 to 1.

    Raises:
        BadRequest: the text is too short, or its file is not what it should be; or what was kept is damaged.
        ModelError: the model computes NaN, or has no tokenizer.
        NativeFailure: llama.cpp refused, or its process died.
    """

    def hear(message: child.Message) -> None:
        if "refused" in message:
            raise _error(message["refused"], message["why"])
        if "told" in message:
            tell(Told(**message["told"]))
        if "share" in message:
            written(message["share"])

    child.run("quantize.imatrix_native", asdict(order), hear, doing=f"run {order.model}")


def _error(kind: str, why: str) -> Exception:
    """The error of that name, as it was raised in the process."""
    for module, root in ((quantize_errors, QuantizeError), (model_errors, ModelError)):
        found = getattr(module, kind, None)
        if isinstance(found, type) and issubclass(found, root):
            return found(why)
    return NativeFailure(why)


# --- inside the process


def main() -> int:
    """Do the order that stdin brings."""
    return child.serve(_work)


def _work(job: child.Message, report: child.Tell) -> int:
    said: list[str] = []
    try:
        _run(Order(**job), report, said)
    except NativeFailure as error:
        why = f"{error}: {said[-1]}" if said else str(error)
        report({"refused": "NativeFailure", "why": why})
        return 1
    except (QuantizeError, ModelError) as error:
        report({"refused": type(error).__name__, "why": str(error)})
        return 1
    except OSError:
        raise  # `serve` hands it on
    except Exception as error:  # the last words of a process whose stderr nobody reads
        report({"words": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _run(order: Order, report: child.Tell, said: list[str]) -> None:
    """`said` gets what llama.cpp has to say of errors."""
    from quantize import kept_sums
    from quantize.eval_callback import SquareSums
    from quantize.imatrix import ImportanceMatrix
    from quantize.resume import Workspace

    workspace = None if order.run is None else Workspace(Path(order.run))
    model = _Model(Path(order.model), said)
    sums = SquareSums()
    done = 0 if workspace is None else kept_sums.restore(sums, order.done, workspace)
    found = _samples(order, model, workspace, report)
    context = model.context(order, sums)
    told = Told(done, len(found.tokens), found.n_chat, found.source, found.sha256)
    report({"told": asdict(told)})
    for number, window in enumerate(found.tokens[done:], done + 1):
        context.decode(window)
        if sums.error is not None:
            raise sums.error
        sums.end_batch()
        if workspace is not None:
            kept_sums.keep(sums, number, workspace)
        report({"told": {**asdict(told), "done": number}})
    for name, values in sums.sums.items():
        if not np.isfinite(values).all():
            raise BrokenModelFile(
                f"{order.model} computes NaN or infinity on the calibration text, first in what goes into "
                f"{name}: the file is broken, or not of the architecture that it names"
            )
    if not sums.sums:
        raise NativeFailure(f"llama.cpp multiplied no matrix that is known here, of {order.model}")
    matrix = ImportanceMatrix(sums.entries(), (found.source,), len(found.tokens), order.length)
    matrix.store(Path(order.output))


def _samples(order: Order, model: "_Model", workspace: "Workspace | None", report: child.Tell) -> Samples:
    if order.self_seed is None:
        texts = bundled() if order.calibration is None else from_file(Path(order.calibration))
        return samples(texts, model, count=order.samples, length=order.length)
    key = f"by llama.cpp, seed {order.self_seed}"
    kept = None if workspace is None else workspace.kept_samples(key)
    if kept is not None:
        return kept
    from quantize.sample_native import Writers, write
    from quantize.self_calibration import Asked, parallel

    asked = Asked.of(model, order.samples, order.length)
    writers = Writers(asked.openings, asked.wanted, order.self_seed)
    write(
        model.llama,
        model.model,
        writers,
        parallel=parallel(order.kv_bytes, order.length),
        length=order.length,
        threads=order.threads,
        told=lambda share: report({"share": share}),
    )
    found = asked.taken([(one.kind, one.tokens) for one in writers.documents], order.self_seed)
    if workspace is not None:
        workspace.keep_samples(found, key)
    return found


class _Model:
    """A loaded model; also its tokenizer, as `calibration.samples` wants it."""

    def __init__(self, path: Path, said: list[str]) -> None:
        import llama_cpp

        self.llama: Any = llama_cpp
        for name, size in SIZES.items():
            if ctypes.sizeof(getattr(llama_cpp, name)) != size:
                raise NativeFailure(f"llama.cpp's {name} has not {size} bytes: it is another version")

        @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
        def on_log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
            if level == 4:  # GGML_LOG_LEVEL_ERROR
                said.append(" ".join(text.decode("utf-8", "replace").split())[:500])

        self._log = on_log
        llama_cpp.llama_log_set(on_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = extra_buffers_work()
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise NativeFailure(f"llama.cpp can't load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.template = self._template()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; `special`: with those that every text begins or ends with."""
        data = text.encode("utf-8", "replace")
        room = len(data) + 16
        tokens = (ctypes.c_int32 * room)()
        n: int = self.llama.llama_tokenize(self.vocab, data, len(data), tokens, room, special, True)
        if n < 0:
            raise BadRequest(f"a text of {len(data)} bytes is too long to tokenize at once")
        return list(tokens[:n])

    def _template(self) -> "ChatTemplate | None":
        from models.chat_template.usable import usable_template
        from models.errors import UnsupportedTemplate

        raw = self.llama.llama_model_chat_template(self.model, None)
        if not raw:
            return None
        names = [
            self._name(of(self.vocab)) for of in (self.llama.llama_vocab_bos, self.llama.llama_vocab_eos)
        ]
        try:
            return usable_template(raw.decode("utf-8", "replace"), bos=names[0], eos=names[1])
        except UnsupportedTemplate:
            return None

    def _name(self, token: int) -> str | None:
        raw = self.llama.llama_vocab_get_text(self.vocab, token) if 0 <= token < self.n_vocab else None
        return raw.decode("utf-8", "replace") if raw else None

    def context(self, order: Order, sums: "SquareSums") -> "_Context":
        """For windows of one length."""
        sample_length(order.length, self.llama.llama_model_n_ctx_train(self.model))
        return _Context(self, order, sums)


class _Context:
    """Runs windows of tokens through a model, each by itself."""

    def __init__(self, model: _Model, order: Order, sums: "SquareSums") -> None:
        llama = model.llama
        self.llama = llama
        # In pieces whose logits fit: all tokens must be outputs, or the last layer drops most of them.
        self.step = max(32, min(512, order.length, LOGITS_BYTES // (8 * model.n_vocab)))
        params = llama.llama_context_default_params()
        params.n_ctx = order.length
        params.n_batch = params.n_ubatch = self.step
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = order.threads
        params.cb_eval = sums.callback
        params.no_perf = True
        self.context = llama.llama_init_from_model(model.model, params)
        if not self.context:
            raise NativeFailure("llama.cpp could not make a context: there may not be enough memory")
        self.batch = llama.llama_batch_init(self.step, 0, 1)

    def decode(self, window: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        """One window, from an empty cache."""
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        batch = self.batch
        for start in range(0, len(window), self.step):
            piece = window[start : start + self.step]
            batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                batch.token[i] = int(token)
                batch.pos[i] = start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = 1
            code = self.llama.llama_decode(self.context, batch)
            if code != 0:
                raise NativeFailure(f"llama.cpp could not compute ({code}): there may not be enough memory")


if __name__ == "__main__":
    sys.exit(main())
