"""One run that goes layer by layer: a checkpoint's folder in, a quantized one out, or nothing."""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from models.errors import UnsupportedModel
from models.packed import PackedCheckpoint
from quantize.calibration import LENGTH, SAMPLES, FolderTokenizer, Samples, bundled, from_file, samples
from quantize.errors import BadRequest, SourceNotFound
from quantize.layer_plan import LayerPlan, make_plan
from quantize.matrices import layer_matrices
from quantize.pipeline import AGAIN, said_when_full, usable_cores
from quantize.recipe import Recipe, check_group_size, default_group_size

if TYPE_CHECKING:
    from models.weights import Weights
    from quantize.layer_methods import LayerMethod
    from quantize.receipt import Receipt
    from quantize.resume import State
    from quantize.streaming import LayerStep


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """What a person asks for."""

    source: Path
    """A folder in safetensors."""
    recipe: Recipe = field(default_factory=Recipe)
    output: Path | None = None
    """The folder that the result will be; None: beside nothing, in the current folder."""
    calibration: Path | None = None
    """A text file or JSONL; None: the mix that comes with edgechat."""
    samples: int = SAMPLES
    length: int = LENGTH
    device: str = "cpu"
    resume: bool = False
    force: bool = False
    max_memory: int | None = None
    """Bytes; None: what is free."""
    threads: int = 0
    evaluated: bool = True
    """Compare the result with the source afterwards."""


class Reporter(Protocol):
    """Is told what happens."""

    def plan(self, plan: LayerPlan) -> None:
        """Before anything is done."""

    def layer(self, step: "LayerStep") -> None:
        """A part of a layer is done."""

    def evaluating(self, share: float) -> None:
        """That much of the comparison with the source is done."""

    def note(self, text: str) -> None:
        """Something that a person should know."""


class Silent:
    """Tells nobody."""

    def plan(self, plan: LayerPlan) -> None:
        """Nothing."""

    def layer(self, step: "LayerStep") -> None:
        """Nothing."""

    def evaluating(self, share: float) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What came out."""

    path: Path
    receipt: "Receipt"
    notes: tuple[str, ...]


def run(request: LayerRequest, reporter: Reporter | None = None) -> LayerResult:
    """Quantize. The output appears whole and flushed, or not at all; a stopped run can be resumed.

    Raises:
        FileNotFoundError: the source, or a part of it, is missing.
        ModelError: the source is broken, or not supported.
        QuantizeError: the request can't be done.
    """
    reporter = reporter or Silent()
    source = request.source
    if not source.exists():
        raise SourceNotFound(f"nothing at {source}: give a checkpoint's folder")
    if not source.is_dir():
        raise BadRequest(
            f"{source} is a file: --to {request.recipe.format} takes a checkpoint's folder in safetensors"
        )
    _need_torch()
    from models.weights import open_weights

    with open_weights(source) as weights:
        return _Run(request, weights, reporter).run()


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UnsupportedModel(
            "GPTQ, AWQ and INT8 are computed with torch: pip install 'edgechat[torch]'"
        ) from None


class _Run:
    """The steps of a run."""

    def __init__(self, request: LayerRequest, weights: "Weights", reporter: Reporter) -> None:
        from quantize.assemble import check_output
        from quantize.resume import Workspace

        self.begun = time.monotonic()
        self.reporter = reporter
        self.weights = weights
        self.notes: list[str] = []
        self.tokenizer: FolderTokenizer | None = None
        recipe = self._settled(request.recipe)
        output = request.output or Path(f"{request.source.resolve().name}-{recipe.label}")
        output = output.absolute()
        self.request = replace(request, recipe=recipe, output=output)
        self.output = output
        check_output(output, request.source, force=request.force or request.resume)
        if output.exists() and not request.force:
            check_output(output, request.source, force=False)
        self.workspace: Workspace = Workspace(output)

    def _settled(self, recipe: Recipe) -> Recipe:
        """With a group size that fits the model."""
        shapes = [
            (f"layer {index}'s {name}", *shape)
            for index in range(self.weights.config.n_layers)
            for name, shape in layer_matrices(self.weights, index).items()
        ]
        if recipe.group_size is None:
            size = -1
            if recipe.format != "int8":
                size = default_group_size([(rows, columns) for _, rows, columns in shapes])
                if size != 128:
                    self._note(f"groups of {size}: the largest of 128, 64 and 32 that divides every matrix")
            return replace(recipe, group_size=size)
        check_group_size(recipe.group_size, shapes)
        return recipe

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.reporter.note(text)

    def run(self) -> LayerResult:
        """From the checks to the result."""
        import torch

        from quantize.layer_methods import method_of

        request, recipe = self.request, self.request.recipe
        checkpoint = self.weights.checkpoint
        if isinstance(checkpoint, PackedCheckpoint) and checkpoint.packed:
            self._note(AGAIN)
        method = method_of(recipe, self._dtype())
        for index in range(self.weights.config.n_layers):
            method.check(layer_matrices(self.weights, index))
        tokenizer = self._tokenizer()
        found = self._samples(tokenizer) if recipe.reads_text and tokenizer is not None else None
        self.tokenizer = tokenizer if request.evaluated else None
        with self.workspace.locked(), said_when_full(self.output), torch.no_grad():
            plan = make_plan(self.weights, request, self.workspace)
            self.reporter.plan(plan)
            plan.check(self.output.parent)
            threads = request.threads or usable_cores()
            state = self.workspace.begin(
                self._fingerprint(found), threads, resume=request.resume, force=request.force
            )
            if state.layers:
                self._note(f"going on after layer {len(state.layers)} of {self.weights.config.n_layers}")
            with _threads(state.threads):
                return self._made(method, state, found, plan)

    def _made(
        self, method: "LayerMethod", state: "State", found: Samples | None, plan: LayerPlan
    ) -> LayerResult:
        import torch

        from quantize.assemble import assemble
        from quantize.receipt import make_receipt
        from quantize.resume import write_flushed
        from quantize.streaming import Streamer

        tokens = None if found is None else torch.from_numpy(found.tokens)
        Streamer(
            self.weights,
            method,
            self.workspace,
            state,
            tokens,
            device=self.request.device,
            in_memory=plan.in_memory,
            keeps=plan.keeps,
            told=self.reporter.layer,
        ).run()
        ignored = self._ignored()
        result = assemble(
            self.request.source, self.weights, self.workspace, method.files(quantizer(), ignored)
        )
        receipt = make_receipt(
            self.request,
            self.weights,
            result,
            state,
            found,
            begun=self.begun,
            tokenizer=self.tokenizer,
            evaluating=self.reporter.evaluating,
        )
        write_flushed(result / "edgechat-receipt.json", receipt.to_json())
        self.workspace.deliver()
        return LayerResult(self.output, receipt, tuple(self.notes))

    def _tokenizer(self) -> FolderTokenizer | None:
        """The source's; None where it can't be had, and the run can do without."""
        if not self.request.recipe.reads_text and not self.request.evaluated:
            return None
        try:
            return FolderTokenizer(self.request.source)
        except UnsupportedModel as error:
            if self.request.recipe.reads_text:
                raise
            self._note(f"the result won't be compared with the source: {error}")
            return None

    def _samples(self, tokenizer: FolderTokenizer) -> Samples:
        request = self.request
        if request.length > self.weights.config.n_ctx:
            raise BadRequest(
                f"--sequence-length {request.length} is more than the model's context of "
                f"{self.weights.config.n_ctx} tokens"
            )
        texts = bundled() if request.calibration is None else from_file(request.calibration)
        found = samples(texts, tokenizer, count=request.samples, length=request.length)
        highest = int(found.tokens.max())
        if highest >= self.weights.config.vocab_size:
            raise BadRequest(
                f"{request.source}: the tokenizer has a token {highest}, the model only "
                f"{self.weights.config.vocab_size}: the files don't belong together"
            )
        return found

    def _ignored(self) -> list[str]:
        """Modules that readers may take for linear ones and that stay as they are."""
        ignored = ["lm_head"]
        if self.weights.config.experts is not None:
            ignored += [
                f"model.layers.{index}.mlp.gate"
                for index, has_experts in enumerate(self.weights.config.expert_layers)
                if has_experts
            ]
        return ignored

    def _dtype(self) -> str:
        """Of the model, as safetensors calls it: that of its embedding."""
        names = self.weights.names
        if names is None:
            raise TypeError("a GGUF file")
        dtype = self.weights.checkpoint.tensors[names.name("model.embed_tokens.weight")].dtype
        return dtype if dtype in {"F32", "F16", "BF16"} else "BF16"

    def _fingerprint(self, found: Samples | None) -> str:
        """Of all that decides about the result: the source by its headers, sizes and times."""
        files = {tensor.file for tensor in self.weights.checkpoint.tensors.values()}
        parts = [
            quantizer(),
            self.request.recipe.fingerprint,
            self.request.device,
            "" if found is None else hashlib.sha256(found.tokens.tobytes()).hexdigest(),
            hashlib.sha256((self.request.source / "config.json").read_bytes()).hexdigest(),
            *(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in sorted(files)),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def quantizer() -> str:
    """Who wrote a checkpoint: "edgechat:0.1.0"."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"edgechat:{version('edgechat')}"
    except PackageNotFoundError:
        return "edgechat:0"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch computes with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory() -> int:
    """Bytes that this process may still take."""
    import psutil

    limit = os.environ.get("EDGECHAT_MEMORY_LIMIT")
    available = int(psutil.virtual_memory().available)
    return min(available, int(limit)) if limit and limit.isdigit() else available
