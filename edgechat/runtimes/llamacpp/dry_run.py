"""Asks llama.cpp what it would allocate, without allocating it.

With `no_alloc` llama.cpp goes through the motions of loading a model and making a context, and logs the exact
sizes of its buffers. The model is gone through once; every context after it takes hundredths of a second.

Run as `python -m edgechat.runtimes.llamacpp.dry_run`, it reads LoadSettings, one JSON object a line, and
answers each with a line, an Answer. All lines are of the same model: that of the first. So the process that
asks never loads native code.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from edgechat.errors import from_exception
from edgechat.library import estimate
from edgechat.library.dry_run import Answer
from edgechat.library.needs import Needs
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp import abi, logs
from edgechat.runtimes.llamacpp.backends import features
from edgechat.runtimes.llamacpp.context import LOAD_MODE_NONE, context_params, vocabulary_size
from edgechat.runtimes.llamacpp.devices import DeviceKind, gpus
from edgechat.runtimes.llamacpp.failures import explain
from models.amx import extra_buffers_work

MIB = 2**20
KV_SIZE = re.compile(r"llama_kv_cache\w*: size\s*=\s*(?P<mib>[\d.]+) MiB \(")
RECURRENT_SIZE = re.compile(r"llama_memory_recurrent: size\s*=\s*(?P<mib>[\d.]+) MiB")
BUFFER_SIZE = re.compile(r"(?P<where>\S+)\s+(?P<what>compute|output) buffer size\s*=\s*(?P<mib>[\d.]+) MiB")
BUILD_FEATURES = {
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "AMX_INT8": "amx_int8",
}
LONGEST_MADE = 2**19
"""Tokens of the longest context that is made to be asked of: llama.cpp fills in a row for each cell, with or
without memory for it, which takes seconds for 2^24. Buffers of longer ones go on growing as they do here."""
ENGINE_EXTRA = 26 * MIB
"""What the engine's process holds that a process of this module's doesn't, NumPy most of it: measured."""


class DryRun:
    """A model that has no memory for its weights. To be closed."""

    def __init__(self, path: Path) -> None:
        """Go through the model.

        Raises:
            EdgechatError: llama.cpp can't load it.
        """
        self._log = logs.capture()
        self._llama: Any = abi.llama()
        self._parts = estimate.read_parts(path)
        no_devices = (ctypes.c_void_p * 1)(None)
        params = self._llama.llama_model_default_params()
        params.no_alloc = True
        params.load_mode = LOAD_MODE_NONE
        params.use_extra_bufts = extra_buffers_work()
        params.n_gpu_layers = 0
        params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
        self._log.clear()
        self._model = self._llama.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise explain(self._log, path.name)
        self.n_ctx_train = int(self._llama.llama_model_n_ctx_train(self._model))
        self.n_layers = int(self._llama.llama_model_n_layer(self._model)) + 1

    def close(self) -> None:
        """Give the little memory back."""
        model, self._model = self._model, None
        if model:
            self._llama.llama_model_free(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def n_ctx(self, settings: LoadSettings) -> int:
        """Tokens of context that these settings come to."""
        return estimate.context(settings, self.n_ctx_train)

    def needs(self, settings: LoadSettings, layers: int = 0) -> Needs | None:
        """What such a context takes; None where llama.cpp can't make it.

        Args:
            settings: how it would be loaded.
            layers: how many layers would be on GPUs. What they take there is in proportion.
        """
        reserved = self._sizes(settings, few_outputs=False, on_gpu=layers > 0)
        chatting = self._sizes(settings, few_outputs=True, on_gpu=layers > 0)
        if reserved is None or chatting is None:
            return None
        rows = chatting.rows
        return offloaded(
            Needs(
                engine=estimate.table_bytes(self._parts[0]) + estimate.GRAPHS,
                **estimate.weight_needs(self._parts, settings, laid_out_for()),
                kv=chatting.kv,
                compute=chatting.compute,
                output=chatting.output,
                scoring=reserved.compute - chatting.compute + rows * vocabulary_size(self._model) * 4,
            ),
            layers / self.n_layers,
        )

    def _sizes(self, settings: LoadSettings, *, few_outputs: bool, on_gpu: bool = False) -> "_Sizes | None":
        """The buffers of a context; with few outputs, as while chatting, or with all that it allows for."""
        n_ctx = self.n_ctx(settings)
        if n_ctx <= LONGEST_MADE:
            return self._made(settings, n_ctx, few_outputs=few_outputs, on_gpu=on_gpu)
        half = self._made(settings, LONGEST_MADE // 2, few_outputs=few_outputs, on_gpu=on_gpu)
        whole = half and self._made(settings, LONGEST_MADE, few_outputs=few_outputs, on_gpu=on_gpu)
        return half and whole and whole.beyond(half, (n_ctx - LONGEST_MADE) / (LONGEST_MADE // 2))

    def _made(
        self, settings: LoadSettings, n_ctx: int, *, few_outputs: bool, on_gpu: bool
    ) -> "_Sizes | None":
        params = context_params(settings, n_ctx, self._model, on_gpu=on_gpu)
        rows = params.n_outputs_max
        if few_outputs:
            params.n_outputs_max = params.n_seq_max
        self._log.clear()
        context = self._llama.llama_init_from_model(self._model, params)
        if not context:
            return None
        lines = self._log.lines
        self._llama.llama_free(context)
        return _Sizes.read(lines, rows)


class _Sizes(msgspec.Struct, frozen=True):
    """Bytes, from the log of making a context."""

    kv: int
    compute: int
    output: int
    rows: int

    @classmethod
    def read(cls, lines: Iterable[str], rows: int) -> "_Sizes":
        found = {"kv": 0.0, "compute": 0.0, "output": 0.0}
        for line in lines:
            if match := KV_SIZE.search(line) or RECURRENT_SIZE.search(line):
                found["kv"] += float(match["mib"])
            elif match := BUFFER_SIZE.search(line):
                found[match["what"]] += float(match["mib"])
        return cls(**{name: int(mib * MIB) for name, mib in found.items()}, rows=rows)

    def beyond(self, before: "_Sizes", steps: float) -> "_Sizes":
        """Those of a context that is longer than this one by `steps` times what this one is than `before`."""
        names = ("kv", "compute", "output")
        grown = {
            name: getattr(self, name) + (getattr(self, name) - getattr(before, name)) * steps
            for name in names
        }
        return _Sizes(**{name: int(size) for name, size in grown.items()}, rows=self.rows)


def offloaded(needs: Needs, share: float) -> Needs:
    """The same with a share of the layers on GPUs: copies of their weights, and their cache, are there."""
    if share <= 0:
        return needs
    weights, kv = int(needs.weights * share), int(needs.kv * share)
    repacked = int(needs.repacked * (1 - share))
    return msgspec.structs.replace(
        needs,
        repacked=repacked,
        cold=min(needs.weights, weights + int(needs.cold * (1 - share))),
        kv=needs.kv - kv,
        gpu=weights + kv + needs.compute + needs.scoring,
    )


def laid_out_for() -> set[str]:
    """The CPU's features for which this llama.cpp lays weights out."""
    if not extra_buffers_work():
        return set()
    return cpu_features(features(abi.llama().llama_print_system_info().decode("utf-8", "replace")))


def cpu_features(built: Iterable[str]) -> set[str]:
    """What llama.cpp's CPU code was built with, as `edgechat.hardware` names it; nothing without REPACK."""
    built = set(built)
    return {BUILD_FEATURES[name] for name in built if name in BUILD_FEATURES} if "REPACK" in built else set()


def main() -> int:
    """Answer each line of standard input, until it ends."""
    run: DryRun | None = None
    for line in sys.stdin.buffer:
        settings = msgspec.json.decode(line, type=LoadSettings)
        try:
            if run is None:
                run = DryRun(Path(settings.path))
                run.needs(settings)
                engine = psutil.Process().memory_info().rss + ENGINE_EXTRA
            answer = _answer(run, settings, engine)
        except Exception as error:
            ours = from_exception(error)
            if ours is None:
                raise
            answer = Answer(error=str(ours), code=int(ours.code))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _answer(run: DryRun, settings: LoadSettings, engine: int) -> Answer:
    found = gpus() if settings.n_gpu_layers else ()
    wanted = settings.n_gpu_layers if settings.n_gpu_layers >= 0 else run.n_layers
    needs = run.needs(settings, min(wanted, run.n_layers) if found else 0)
    if needs is not None:
        needs = msgspec.structs.replace(needs, engine=engine)
    return Answer(
        needs=needs,
        n_ctx=run.n_ctx(settings),
        n_ctx_train=run.n_ctx_train,
        n_layers=run.n_layers,
        vram=sum(gpu.memory_free for gpu in found),
        gpu=", ".join(gpu.label for gpu in found),
        shared=any(gpu.kind is DeviceKind.IGPU or gpu.name.startswith("Metal") for gpu in found),
    )


if __name__ == "__main__":
    sys.exit(main())
