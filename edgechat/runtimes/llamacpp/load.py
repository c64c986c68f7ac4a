"""From a GGUF file to a model and a context of llama.cpp's, or an error that says why not."""

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgechat import hardware
from edgechat.errors import NotFoundError, ResourceError, UnsupportedError
from edgechat.library import estimate
from edgechat.library.needs import Available
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import abi, fit, logs, memory
from edgechat.runtimes.llamacpp.attention import OFF
from edgechat.runtimes.llamacpp.context import LOAD_MODE_AUTO, LOAD_MODE_NONE, context_params, vocabulary_size
from edgechat.runtimes.llamacpp.devices import Device, gpu_backends, gpus
from edgechat.runtimes.llamacpp.failures import explain
from edgechat.runtimes.llamacpp.fingerprint import parts
from edgechat.runtimes.llamacpp.header import kv_bytes_per_token
from models.amx import extra_buffers_work

Progress = Callable[[float], bool]

CPU_ATTEMPTS = 4
"""Loads where the system refuses memory that seemed free, each with less than the one before."""

OVERRIDDEN = re.compile(r"control-looking token:\s+(?P<token>\d+) '</s>' was not control-type")


class LoadCancelled(Exception):
    """The progress callback answered False."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model and its context, both llama.cpp's pointers, to be freed by `close`."""

    model: int
    context: int
    n_threads: int
    n_gpu_layers: int
    gpus: tuple[Device, ...]
    """That layers run on."""
    kv_bytes_per_token: int
    text_tokens: tuple[int, ...]
    """Tokens that llama.cpp takes for the end of a turn, though the file calls them plain text."""
    notes: tuple[str, ...]
    """What the person should know of how it was loaded."""
    settings: LoadSettings
    """What it was loaded with: where memory was short, less than was asked for."""
    values_turned: bool
    """The cache holds values by column, as attention without the fused kernel wants them; so do states."""

    def close(self) -> None:
        """Give the memory back; the pointers are dead after it."""
        llama = abi.llama()
        llama.llama_free(self.context)
        llama.llama_model_free(self.model)


def open_model(settings: LoadSettings, on_progress: Progress | None = None) -> Opened:
    """Load the model and make its context.

    Layers that don't fit on the GPU stay on the CPU, and the notes say so.

    Raises:
        NotFoundError: no such file, or it can't be read.
        BrokenModelError: llama.cpp can't make sense of it.
        ResourceError: not enough memory.
        UnsupportedError: a model that is no use here, or llama.cpp of another version.
        LoadCancelled: `on_progress` answered False.
    """
    path = Path(settings.path)
    weights = _weights(path)
    return _Loader(settings, path, weights, on_progress).run()


class _Loader:
    """One attempt after the other until the model is loaded."""

    def __init__(
        self, settings: LoadSettings, path: Path, weights: int, on_progress: Progress | None
    ) -> None:
        self.settings = settings
        self.path = path
        self.weights = weights
        self.on_progress = on_progress
        self.log = logs.capture()
        self.llama: Any = abi.llama()
        # What is planned counts the engine itself, and the model that this one drafts for.
        self.free = hardware.memory(held=hardware.own_memory())
        self.gpus = gpus() if settings.n_gpu_layers else ()
        self.n_threads = settings.n_threads or hardware.physical_cores()
        self.notes: list[str] = []

    def run(self) -> Opened:
        wanted = self.settings.n_gpu_layers
        if not self.gpus:
            self._note_missing_gpu()
            return self._on_cpu()
        try:
            return self._attempt(wanted)
        except ResourceError as error:
            first = error
        free = sum(gpu.memory_free for gpu in self.gpus)
        n_layers = memory.layer_count(self.log.lines)
        for layers in memory.gpu_attempts(wanted, n_layers, self.weights, free):
            if layers == 0:
                return self._on_cpu()
            host = self.weights if not n_layers else self.weights * (n_layers + 1 - layers) // (n_layers + 1)
            if host + memory.HEADROOM > self.free.available:
                break
            try:
                opened = self._attempt(layers)
            except ResourceError:
                continue
            return opened
        raise first

    def _on_cpu(self) -> Opened:
        """Load with settings that fit; with lower ones where the system says no nevertheless."""
        asked, notes = self.settings, self.notes
        free = Available(self.free.available, margin=self.free.margin)
        refused: ResourceError | None = None
        for _ in range(CPU_ATTEMPTS):
            try:
                self.settings, note = fit.to_memory(asked, self.path, free)
            except ResourceError as error:
                raise refused or error from None
            self.notes = [*notes, note] if note else notes
            try:
                return self._attempt(0)
            except ResourceError as error:
                refused = refused or error
                free = fit.less(self.settings, self.path)
        raise refused or ResourceError(f"not enough memory for {self.path.name}")

    def _attempt(self, layers: int) -> Opened:
        """Load with so many layers on the GPUs (-1: all)."""
        # ctypes keeps no reference to either: they must live until the call returns.
        no_devices = (ctypes.c_void_p * 1)(None)
        failures: list[BaseException] = []
        callback = self._callback(failures)

        params = self.llama.llama_model_default_params()
        params.n_gpu_layers = layers
        params.load_mode = LOAD_MODE_NONE if self.settings.use_mmap is False else LOAD_MODE_AUTO
        params.use_extra_bufts = extra_buffers_work()
        params.progress_callback = callback
        if layers == 0:
            params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
        self.log.clear()
        model = self.llama.llama_model_load_from_file(os.fsencode(self.path), params)
        if failures:
            if model:
                self.llama.llama_model_free(model)
            raise failures[0]
        if not model:
            raise explain(self.log, self.path.name)
        context = None
        try:
            self._refuse_useless(model)
            text_tokens = self._text_tokens(model)
            offloaded = memory.offloaded_layers(self.log.lines) if layers else 0
            n_ctx = self._n_ctx(self.llama.llama_model_n_ctx_train(model))
            params = context_params(self.settings, n_ctx, model, self.n_threads, on_gpu=offloaded > 0)
            context = self.llama.llama_init_from_model(model, params)
            if not context:
                raise explain(self.log, self.path.name)
            if not self.llama.llama_get_memory(context):
                raise UnsupportedError(f"{self.path.name} is an embedding model: it can't write text")
            kv_bytes = self._kv_bytes(model)
        except BaseException:
            if context:
                self.llama.llama_free(context)
            self.llama.llama_model_free(model)
            raise
        return Opened(
            model=model,
            context=context,
            n_threads=self.n_threads,
            n_gpu_layers=offloaded,
            gpus=self.gpus if offloaded else (),
            kv_bytes_per_token=kv_bytes,
            text_tokens=text_tokens,
            notes=(*self.notes, *self._notes(model, layers, offloaded, n_ctx)),
            settings=self.settings,
            values_turned=params.flash_attn_type == OFF,
        )

    def _n_ctx(self, n_ctx_train: int) -> int:
        """Tokens of context, in llama.cpp's steps."""
        return estimate.context(self.settings, n_ctx_train)

    def _refuse_useless(self, model: int) -> None:
        """Models that are loaded well, but can't continue a text token by token."""
        llama, name = self.llama, self.path.name
        if llama.llama_model_has_encoder(model) or not llama.llama_model_has_decoder(model):
            raise UnsupportedError(f"{name} is an encoder or translation model: edgechat runs decoders only")
        if llama.llama_model_is_diffusion(model):
            raise UnsupportedError(f"{name} is a diffusion model: edgechat runs models that write in order")
        if vocabulary_size(model) <= 0:
            raise UnsupportedError(f"{name} has no vocabulary: it can't read or write text")

    def _text_tokens(self, model: int) -> tuple[int, ...]:
        """The HTML tag "</s>", which Qwen and Gemma have as a token of plain text.

        llama.cpp takes every "</s>" for the end of a turn, whatever the file says of its type; an answer
        with struck-out text would end there.
        """
        vocab = self.llama.llama_model_get_vocab(model)
        ends = {self.llama.llama_vocab_eos(vocab), self.llama.llama_vocab_eot(vocab)}
        found = (OVERRIDDEN.search(line) for line in self.log.lines)
        return tuple(int(match["token"]) for match in found if match and int(match["token"]) not in ends)

    def _callback(self, failures: list[BaseException]) -> Any:
        """`on_progress` for C, where no exception may pass."""
        on_progress = self.on_progress
        last = -1.0

        def progress(done: float, _: object) -> bool:
            nonlocal last
            if on_progress is None or (done < 1 and done - last < 0.01):
                return True
            last = done
            try:
                if on_progress(done):
                    return True
                failures.append(LoadCancelled())
            except BaseException as error:
                failures.append(error)
            return False

        return self.llama.llama_progress_callback(progress)

    def _notes(self, model: int, layers: int, offloaded: int, n_ctx: int) -> list[str]:
        notes = []
        total = self.llama.llama_model_n_layer(model) + 1
        wanted = self.settings.n_gpu_layers
        target = total if wanted < 0 else min(wanted, total)
        if self.gpus and offloaded < target:
            where = ", ".join(gpu.label for gpu in self.gpus)
            if offloaded:
                notes.append(f"only {offloaded} of {total} layers fit on {where}; the CPU runs the rest")
            else:
                notes.append(f"the model does not fit on {where}: it runs on the CPU")
        if 0 < self.settings.n_ctx < estimate.CTX_STEP:
            notes.append(
                f"a context of {self.settings.n_ctx} tokens became {n_ctx}: llama.cpp has no smaller one"
            )
        trained = self.llama.llama_model_n_ctx_train(model)
        if 0 < trained < n_ctx:
            notes.append(
                f"the model was trained on {trained} tokens of context; beyond them, of {n_ctx}, "
                "it may lose the thread"
            )
        return notes

    def _note_missing_gpu(self) -> None:
        if self.settings.n_gpu_layers == 0:
            return
        if built_in := ", ".join(gpu_backends()):
            self.notes.append(f"llama.cpp was built with {built_in}, but found no GPU: it runs on the CPU")
        elif self.settings.n_gpu_layers > 0:
            self.notes.append("llama.cpp was built without GPU support: it runs on the CPU")

    def _kv_bytes(self, model: int) -> int:
        """Bytes of the cache for a token: the formula where llama.cpp's log agrees with it, else the log."""
        formula = kv_bytes_per_token(model, self.settings.kv_type)
        logged = memory.kv_bytes_per_token(self.log.lines)
        if logged is None or abs(logged - formula) <= max(64, formula // 200):
            return formula
        return logged


def _weights(path: Path) -> int:
    """Bytes of the model's files.

    Raises:
        NotFoundError: no such file, or it can't be read.
    """
    try:
        if path.is_dir():
            raise NotFoundError(f"{path} is a folder: name the GGUF file in it")
        with path.open("rb"):
            pass
        return sum(part.stat().st_size for part in parts(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"no such model file: {path}") from error
    except OSError as error:
        raise NotFoundError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:  # a NUL byte in the name
        raise NotFoundError(f"no such model file: {str(path)!r}") from error
