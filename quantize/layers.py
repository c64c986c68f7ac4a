"""One run that goes layer by layer: a checkpoint's folder or a GGUF file in, a quantized folder out, or
nothing."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import UnsupportedModel
from quantize.calibration import (
    FolderTokenizer,
    Samples,
    bundled,
    folder_template,
    from_file,
    sample_length,
    samples,
)
from quantize.devices import usable_cores, usable_device
from quantize.early import settle
from quantize.errors import BadRequest, to_install
from quantize.heap import give_back
from quantize.layer_plan import LayerPlan, make_plan
from quantize.layer_request import LayerRequest, LayerResult, Reporter, Silent, free_memory
from quantize.matrices import layer_matrices
from quantize.partial import remove_stale
from quantize.plan import said_when_full
from quantize.remarks import plain_remark
from quantize.source import Source, open_source

if TYPE_CHECKING:
    from quantize.layer_method import LayerMethod
    from quantize.resume import State

__all__ = ["LayerRequest", "LayerResult", "Reporter", "Silent", "free_memory", "quantizer", "run"]


def run(request: LayerRequest, reporter: Reporter | None = None) -> LayerResult:
    """Quantize. The output appears whole and flushed, or not at all; a stopped run can be resumed.

    Raises:
        FileNotFoundError: the source, or a part of it, is missing.
        ModelError: the source is broken, or not supported.
        QuantizeError: the request can't be done.
    """
    settled = settle(request)
    _need_torch()
    request = replace(settled.request, device=usable_device(request.device))
    with open_source(request.source) as source:
        under_way = _Run(request, settled.output, source, reporter or Silent())
        if settled.note:
            under_way.note(settled.note)
        return under_way.run()


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UnsupportedModel(f"GPTQ, AWQ and INT8 are computed with torch: {to_install('torch')}") from None


class _Run:
    """The steps of a run."""

    def __init__(self, request: LayerRequest, output: Path, source: Source, reporter: Reporter) -> None:
        from quantize.resume import Workspace

        self.begun = time.monotonic()
        self.reporter = reporter
        self.source = source
        self.weights = source.weights
        self.notes: list[str] = []
        self.trouble = ""
        """Why the source's chat template can't be used."""
        self.tokenizer: FolderTokenizer | None = None
        self.has_own_text = False
        """A stopped run had written its calibration text, and this one goes on with it."""
        threads = request.threads or usable_cores()
        n_ctx = self.weights.config.n_ctx
        self.length = sample_length(request.length, n_ctx) if request.recipe.reads_text else 0
        self.request = replace(request, threads=threads)
        self.output = output
        self.workspace: Workspace = Workspace(output)

    def note(self, text: str) -> None:
        """Say something to the person, now and with the result."""
        self.notes.append(text)
        self.reporter.note(text)

    def run(self) -> LayerResult:
        """From the checks to the result."""
        import torch

        from quantize.layer_methods import method_of
        from quantize.resume import BEGINS_ANEW

        request, recipe = self.request, self.request.recipe
        self.weights.check()
        for note in self.source.notes:
            self.note(note)
        _, self.trouble = folder_template(self.source.folder)
        for note in plain_remark(self.trouble):
            self.note(note)
        method = method_of(recipe, self._dtype())
        for index in range(self.weights.config.n_layers):
            method.check(layer_matrices(self.weights, index))
        tokenizer = self._tokenizer()
        self.tokenizer = tokenizer if request.evaluated else None
        reads = recipe.reads_text and tokenizer is not None
        # A text that is too short is refused at once; what the model writes itself comes after the plan.
        found = self._samples(tokenizer) if reads and tokenizer and request.self_seed is None else None
        with self.workspace.locked(), said_when_full(self.output), torch.no_grad():
            remove_stale(self.output)
            if self.workspace.put_back():
                self.note(f"{self.output} is there again: a run was stopped while it replaced it")
            plan = make_plan(
                self.source, request, self.workspace, length=self.length, evaluated=self._compared_on()
            )
            self.reporter.plan(plan)
            plan.check(self.output.parent)
            if reads and tokenizer and request.self_seed is not None:
                found = self._written(tokenizer, request.self_seed)
            state = self.workspace.begin(
                self._fingerprint(found), request.threads, resume=request.resume, force=request.force
            )
            state.n_layers = self.weights.config.n_layers
            if state.layers:
                self.note(f"going on after layer {len(state.layers)} of {self.weights.config.n_layers}")
            elif request.resume and not self.has_own_text:
                self.note(BEGINS_ANEW)
            if found is not None and request.self_seed is not None:
                self.workspace.keep_samples(found, self._self_key())
            with _threads(state.threads), self.workspace.kept_when_stopped(lambda: state):
                return self._made(method, state, found, plan)

    def _made(
        self, method: "LayerMethod", state: "State", found: Samples | None, plan: LayerPlan
    ) -> LayerResult:
        import torch

        from quantize.assemble import assemble, keep_rest
        from quantize.receipt import make_receipt
        from quantize.resume import write_flushed
        from quantize.streaming import Streamer

        keep_rest(self.weights, self.workspace)
        tokens = None if found is None else torch.from_numpy(found.tokens)
        Streamer(
            self.weights,
            method,
            self.workspace,
            state,
            tokens,
            device=self.request.device,
            in_memory=plan.in_memory,
            kept=plan.kept,
            told=self.reporter.layer,
        ).run()
        give_back()
        files = method.files(quantizer(), self._ignored(), self._kept(state))
        result = assemble(self.source.folder, self.weights, self.workspace, files)
        receipt = make_receipt(
            self.request,
            self.source,
            result,
            state,
            found,
            begun=self.begun,
            tokenizer=self.tokenizer,
            evaluating=self.reporter.evaluating,
        )
        write_flushed(result / "edgechat-receipt.json", receipt.to_json())
        self.workspace.deliver()
        return LayerResult(self.output, receipt, tuple(self.notes), is_plain=bool(self.trouble))

    def _tokenizer(self) -> FolderTokenizer | None:
        """The source's; None where it can't be had, and the run can do without."""
        if not self.request.recipe.reads_text and not self.request.evaluated:
            return None
        try:
            return FolderTokenizer(self.source.folder)
        except (UnsupportedModel, FileNotFoundError) as error:
            if self.request.recipe.reads_text:
                raise
            self.note(f"the result won't be compared with the source: {error}")
            return None

    def _compared_on(self) -> int:
        """Tokens of the text that the result is compared on."""
        if self.tokenizer is None:
            return 0
        from quantize.compare import WINDOW, held_out, windows_of

        window = min(WINDOW, self.weights.config.n_ctx)
        return int(windows_of(held_out(), self.tokenizer, window).numel())

    def _samples(self, tokenizer: FolderTokenizer) -> Samples:
        request = self.request
        texts = bundled() if request.calibration is None else from_file(request.calibration)
        found = samples(texts, tokenizer, count=request.samples, length=self.length)
        highest = int(found.tokens.max())
        if highest >= self.weights.config.vocab_size:
            raise BadRequest(
                f"{request.source}: the tokenizer has a token {highest}, the model only "
                f"{self.weights.config.vocab_size}: the files don't belong together"
            )
        return found

    def _written(self, tokenizer: FolderTokenizer, seed: int) -> Samples:
        """What the model writes itself, or what it wrote for the run that goes on."""
        from quantize.self_calibration import written

        request = self.request
        kept = self.workspace.kept_samples(self._self_key()) if request.resume else None
        if kept is not None:
            self.has_own_text = True
            return kept
        return written(
            self.source,
            tokenizer,
            self.output,
            count=request.samples,
            length=self.length,
            seed=seed,
            threads=request.threads,
            told=self.reporter.sampling,
        )

    def _self_key(self) -> str:
        request = self.request
        return f"{self._source_hash()} {request.self_seed} {request.samples} {self.length}"

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

    def _kept(self, state: "State") -> list[str]:
        """Modules whose inputs are not rounded, though the scheme rounds others."""
        names = self.weights.names
        if names is None:
            raise TypeError("a GGUF file")
        return [
            names.name(f"model.layers.{layer.index}.{matrix.name}")
            for layer in state.layers
            for matrix in layer.matrices
            if matrix.keeps_inputs
        ]

    def _dtype(self) -> str:
        """Of the model, as safetensors calls it: that of its embedding."""
        names = self.weights.names
        if names is None:
            raise TypeError("a GGUF file")
        dtype = self.weights.checkpoint.tensors[names.name("model.embed_tokens.weight")].dtype
        return dtype if dtype in {"F32", "F16", "BF16"} else "BF16"

    def _fingerprint(self, found: Samples | None) -> str:
        """Of all that decides about the result."""
        parts = [
            quantizer(),
            self.request.recipe.fingerprint,
            self.request.device,
            "" if found is None else hashlib.sha256(found.tokens.tobytes()).hexdigest(),
            self._source_hash(),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _source_hash(self) -> str:
        """Of the source by its configuration, and its files' names, sizes and times."""
        from quantize.resume import hash_of_files

        files = {tensor.file for tensor in self.weights.checkpoint.tensors.values()}
        return hash_of_files([self.source.folder / "config.json"], files)


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
