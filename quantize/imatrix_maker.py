"""An importance matrix for a model: read, or made.

It is made by torch, layer by layer, of a checkpoint's folder; by llama.cpp where there is no torch, no
tokenizer that it could read, or the source is a GGUF file.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import UnsupportedModel
from models.gguf import GGUFHeader, read_header
from quantize import imatrix_native
from quantize.calibration import LENGTH, sample_length
from quantize.errors import BadRequest, BrokenWorkspace, NativeFailure, NotEnoughMemory, QuantizeError
from quantize.formats.gguf import OutputTensor
from quantize.imatrix import ImportanceMatrix
from quantize.imatrix_workspace import MatrixWorkspace
from quantize.importance import Made, Say, Wanted
from quantize.partial import partial
from quantize.plan import Target, human, said_when_full
from quantize.progress import Progress, Stage, Step

if TYPE_CHECKING:
    from models.weights import Weights

OWN_TEXT = "the model's own text"
KV_BYTES_AT_MOST = 2**20
"""Of a token's keys and values, in a model whose sizes are not known here."""
WRITING = 1.5
"""Of what a token takes to be read, the time that it takes to be written beside others."""

SAMPLES = 16
"""Some thousand tokens: means of squares need fewer than GPTQ's Hessians do."""


class Maker:
    """Reads or makes one for a model."""

    def __init__(
        self,
        wanted: Wanted,
        target: Target,
        tensors: Sequence[OutputTensor],
        workspace: MatrixWorkspace,
        *,
        free_memory: Callable[[], int],
        progress: Progress,
        say: Say,
    ) -> None:
        """
        Args:
            wanted: what was asked for.
            target: the type of the result.
            tensors: of the model.
            workspace: where what is done of it is kept.
            free_memory: tells how many bytes this process may take.
            progress: is told of each sample.
            say: is told in a sentence what it will take.
        """
        self.wanted = wanted
        self.target = target
        self.shapes = {tensor.name: tensor.shape for tensor in tensors if len(tensor.shape) > 1}
        self.workspace = workspace
        self._free_memory = free_memory
        self.progress = progress
        self.say = say
        self.notes: list[str] = []
        self.samples = wanted.samples or SAMPLES
        self.length = wanted.length or LENGTH  # until the model's context is known
        self._may_do_without = not wanted.given() and not target.needs_imatrix
        self._planned = False
        self._given_up = False

    def on_the_way(self, result_bytes: int, temporary_bytes: int) -> int:
        """What the disk must hold beside the result, at most: with the workspace.

        Args:
            result_bytes: of the result.
            temporary_bytes: of what lies beside it until it is whole.
        """
        if self.workspace.is_whole or self.wanted.is_there:
            return temporary_bytes
        tokens = self.samples * self.length
        states, sums = self.workspace.bytes_needed(self.shapes, tokens)
        # The samples' states are gone when all else is written in full.
        return max(0, max(temporary_bytes, states - result_bytes) + sums)

    def kept(self) -> Made | None:
        """The one that a stopped run made; None: it had not, or this run goes on with none.

        Raises:
            BrokenWorkspace: it is damaged.
            BadRequest: it was written to a file that holds another one now.
        """
        found = self.workspace.kept()
        if found is None:
            return None
        matrix, record = found
        file = self.wanted.file
        if file is not None and file.exists() and not self.workspace.holds(file):
            raise BadRequest(
                f"{file} holds another importance matrix than the stopped run made: give another place, or "
                "--force instead of --resume to begin again with this one"
            )
        self.say("going on with the importance matrix of the stopped run")
        return self._made(matrix.fitted(self.shapes), record)

    def read(self) -> Made | None:
        """The file that is there already; None: there is none.

        Raises:
            BadRequest: it is of another model, or was to be made otherwise.
            BrokenModelFile: it is damaged.
        """
        file = self.wanted.file
        if file is None or not self.wanted.is_there:
            return None
        self.wanted.check_read()
        matrix = ImportanceMatrix.read(file).fitted(self.shapes)
        missing = [name for name in self.shapes if name.startswith("blk.") and name not in matrix.entries]
        missing = [name for name in missing if not name.endswith("_gate_inp.weight")]
        if missing:
            self.notes.append(f"{file} has nothing of {len(missing)} matrices, such as {missing[0]}")
        return Made(matrix, {"by": "file", "file": file.name, "texts": list(matrix.datasets)}, file)

    def by_torch(self, folder: Path) -> Made | None:
        """Of a checkpoint's folder; None: torch or what it needs is not there, the model is to write the text
        itself, which is run by llama.cpp, or it is to be done without.

        Raises:
            QuantizeError: it can't be made, and was asked for.
            ModelError: the model is broken.
        """
        if self.wanted.self_seed is not None:
            return None
        try:
            import torch
            from tokenizers import Tokenizer  # noqa: F401
        except ImportError:
            return None
        from models.weights import open_weights
        from quantize.calibration import FolderTokenizer, bundled, from_file, samples
        from quantize.devices import usable_device
        from quantize.imatrix_torch import collect

        try:
            tokenizer = FolderTokenizer(folder)
        except UnsupportedModel:
            return None
        device = usable_device(self.wanted.device)
        made = None
        with self._forgiving(), open_weights(folder) as weights:
            self.length = sample_length(self.wanted.length, weights.config.n_ctx)
            text = self.wanted.calibration
            texts = bundled() if text is None else from_file(text)
            found = samples(texts, tokenizer, count=self.samples, length=self.length)
            if int(found.tokens.max()) >= weights.config.vocab_size:
                raise BadRequest(
                    f"{folder}: the tokenizer has tokens that the model has not: another model's?"
                )
            self._check_memory(weights, folder)
            state, n_layers = self.workspace.begin(), weights.config.n_layers
            state.n_layers = n_layers
            if state.layers:
                self.say(f"going on after layer {len(state.layers)} of {n_layers}")
            self._plan(texts.name, len(state.layers) / n_layers)
            tokens = torch.from_numpy(found.tokens)
            entries = collect(
                weights, tokens, self.workspace.workspace, state, device=device, told=self._told
            )
            matrix = ImportanceMatrix(entries, (found.source,), len(found.tokens), self.length)
            made = self._finished(matrix, "torch", found.source, found.sha256, found.n_chat)
        return made

    def by_llama(self, model: Path, output: Path) -> Made | None:
        """Of a GGUF file; None: it is to be done without.

        Args:
            model: the file.
            output: of the run; a file in the making lies beside it for a while.

        Raises:
            QuantizeError: it can't be made, and was asked for.
            ModelError: the model is broken.
        """
        if self._given_up:
            return None
        text = self.wanted.calibration
        made = None
        with self._forgiving(), partial(output) as path:
            header = read_header(model)
            self.length = sample_length(self.wanted.length, context_of(header))
            own = self.wanted.self_seed is not None
            state = self.workspace.begin()
            if state.samples:
                self.say(f"going on after sample {state.samples} of {self.samples}")
            name = OWN_TEXT if own else "bundled" if text is None else text.name
            self._plan(name, state.samples / self.samples)
            order = imatrix_native.Order(
                str(model),
                str(path),
                None if text is None else str(text.absolute()),
                self.samples,
                self.length,
                self.workspace.threads,
                self.wanted.self_seed,
                kv_bytes_of(header) if own else 0,
                run=str(output),
                done=state.samples,
            )
            last: imatrix_native.Told | None = None

            def tell(told: imatrix_native.Told) -> None:
                nonlocal last
                last = told
                self.workspace.sampled(told.done)
                self._told(told.done / told.total)

            imatrix_native.collect(order, tell, self._written)
            if last is None:
                raise NativeFailure(f"llama.cpp computed nothing of {model}")
            matrix = replace(ImportanceMatrix.read(path), path=None).fitted(self.shapes)
            made = self._finished(matrix, "llama.cpp", last.source, last.sha256, last.n_chat)
        return made

    def _finished(self, matrix: ImportanceMatrix, by: str, source: str, sha256: str, n_chat: int) -> Made:
        """It is whole: kept until the result is."""
        record = {
            "by": by,
            "source": source,
            "sha256": sha256,
            "samples": self.samples,
            "in_chat_template": n_chat,
            "tokens_each": self.length,
        }
        self.workspace.keep(matrix, record)
        return self._made(matrix, record)

    def _made(self, matrix: ImportanceMatrix, record: Mapping[str, Any]) -> Made:
        """Written to the file that was asked for."""
        file = self.wanted.file
        if file is not None:
            with said_when_full(file, "--imatrix"):
                matrix.write(file)
        return Made(matrix, record, file)

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Where it was not asked for, a model that it can't be made of is quantized without one."""
        try:
            yield
        except BrokenWorkspace:
            raise
        except (QuantizeError, UnsupportedModel) as error:
            if not self._may_do_without:
                raise
            self._given_up = True
            self.notes.append(f"without an importance matrix: {error}")

    def _check_memory(self, weights: "Weights", folder: Path) -> None:
        from quantize.layer_memory import passing_bytes
        from quantize.layer_plan import tokenizer_bytes
        from quantize.matrices import largest_of, layers_of

        layer, tokens = largest_of(layers_of(weights)), self.samples * self.length
        needed = passing_bytes(weights.config, layer, tokens, self.length, tokenizer_bytes(folder))
        free = self._free_memory()
        if needed > free:
            raise NotEnoughMemory(
                f"about {human(needed)} of memory needed for the importance matrix, {human(free)} to be had: "
                "give fewer --samples, or --imatrix off"
            )

    def _plan(self, text: str, done: float) -> None:
        """Say once what it will take; `done`: the share that is there already."""
        if self._planned:
            return
        self._planned = True
        weights = sum(math.prod(shape) for name, shape in self.shapes.items() if name.startswith("blk."))
        tokens = self.samples * self.length
        operations = 2.0 * weights * tokens * (1 - done)
        if self.wanted.self_seed is not None:  # a token at a time of each text: that takes longer
            operations *= 1 + WRITING * (self.samples + 2) / self.samples
        seconds = operations / _speed()
        took = f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
        written = "" if self.wanted.file is None else f", written to {self.wanted.file}"
        self.say(
            f"plan: an importance matrix over {self.samples} x {self.length} tokens ({text}), about {took} "
            f"on an idle machine{written}; --imatrix off does without"
        )
        self._told(done)

    def _written(self, share: float) -> None:
        total = self.samples * self.length
        written = round(share * total)
        self.progress(Step(Stage.WRITE, round(share * self.samples), self.samples, OWN_TEXT, written, total))

    def _told(self, share: float) -> None:
        done = round(share * self.samples)
        total = self.samples * self.length
        step = Step(Stage.CALIBRATE, done, self.samples, "importance matrix", round(share * total), total)
        self.progress(step)


def context_of(header: GGUFHeader) -> int:
    """Tokens that a model was trained on at once; 0: unknown."""
    value = header.metadata.get(f"{header.architecture}.context_length")
    return value if isinstance(value, int) else 0


def kv_bytes_of(header: GGUFHeader) -> int:
    """Bytes of a token's keys and values; of a family that is not known here, of a large model's."""
    from models.gguf_config import config_of, family_named
    from quantize.self_calibration import kv_bytes_per_token

    try:
        return kv_bytes_per_token(config_of(header, family_named(header)))
    except UnsupportedModel:
        return KV_BYTES_AT_MOST


def _speed() -> float:
    """Operations a second of a product of matrices, by a short trial."""
    import numpy as np

    a, b = np.ones((512, 1024), np.float32), np.ones((1024, 1024), np.float32)
    best = 1e9
    for _ in range(4):
        begun = time.perf_counter()
        np.matmul(a, b)
        best = max(best, 2 * 512 * 1024 * 1024 / (time.perf_counter() - begun))
    return best
