"""A GGUF file that llama.cpp makes of another one.

In this order: what the result takes at most is held against the disk; an importance matrix is read or made,
where one helps; what types it leaves open are chosen; and all tensors are quantized.
"""

from collections.abc import Sequence
from pathlib import Path

from models.verify import verify_gguf
from quantize import gguf_receipt, importance, native
from quantize.delivery import deliver
from quantize.formats.gguf import OutputTensor
from quantize.imatrix_maker import Maker
from quantize.importance import Made
from quantize.partial import partial
from quantize.plan import check_disk
from quantize.progress import Stage, Step
from quantize.request import Run
from quantize.type_choice import Choice, Chooser, chosen, in_layers

ADDED_KEYS_BYTES = gguf_receipt.PIECES_BYTES + importance.KEYS_BYTES
"""At most what the receipt and the notes about an importance matrix take in the header."""


class ByLlama:
    """llama.cpp's part of one run."""

    def __init__(
        self,
        run: Run,
        source: Path,
        tensors: Sequence[OutputTensor],
        *,
        header_bytes: int,
        requantize: bool = False,
    ) -> None:
        """
        Args:
            run: which is under way.
            source: a GGUF file, of which the header alone must be there at first.
            tensors: its.
            header_bytes: of the result, before its data, without what we add to it; at most.
            requantize: it may be quantized already.

        Raises:
            NativeFailure: llama.cpp refused the file.
            BadRequest: a type of file that the tensors can't have.
        """
        self.made: Made | None = None
        """The importance matrix, as soon as there is one."""
        self._run = run
        self._source = source
        self._requantize = requantize
        self._threads = run.kept.threads
        request = run.request
        self._chooser = Chooser(
            source, tensors, request.target, request.wishes, header_bytes=header_bytes + ADDED_KEYS_BYTES
        )
        self._maker: Maker | None = None
        if request.importance is not None:
            self._maker = Maker(
                request.importance,
                request.target,
                tensors,
                run.kept,
                free_memory=request.free_memory,
                progress=run.progress,
                say=run.say,
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the importance matrix."""
        return () if self._maker is None else tuple(self._maker.notes)

    def check_disk(self, temporary_bytes: int = 0) -> None:
        """Refuse a run that would fill the disk.

        Raises:
            NotEnoughDisk: with the numbers.
            BadRequest: a wish that does not go with the model, or a size that can't be reached.
        """
        weighted = self._maker is not None
        choice = self._chooser.settle(in_layers(weighted))
        result_bytes = self._chooser.most_bytes(choice, requantize=self._requantize, imatrix=weighted)
        if self._maker is not None:
            temporary_bytes = self._maker.on_the_way(result_bytes, temporary_bytes)
        check_disk(self._run.output.parent, result_bytes, temporary_bytes)

    def weigh(self, folder: Path | None = None) -> None:
        """Have an importance matrix, if there shall be one and there is none yet.

        Args:
            folder: a checkpoint's, to make it of by torch, where that can be; None: by llama.cpp, of the
                source, whose data must be there.

        Raises:
            QuantizeError: it can't be made, and was asked for.
            ModelError: it is damaged, or the model is.
        """
        if self._maker is None or self.made is not None:
            return
        self.made = self._maker.kept() or self._maker.read()
        if self.made is None and folder is not None:
            self.made = self._maker.by_torch(folder)
        elif self.made is None:
            self.made = self._maker.by_llama(self._source, self._run.output)

    def choice(self) -> Choice:
        """The types, as far as they can be said by the importance matrix without measuring."""
        return self._chooser.settle_by(self.made)

    def measured(self, choice: Choice, copy: Path) -> Choice:
        """Have the types that are still open measured and chosen.

        Args:
            choice: what is settled.
            copy: the model in 16 or 32 bits: it is disturbed.
        """
        run = self._run
        if choice.problem is not None:
            run.say(choice.problem.plan)
        total_bytes = copy.stat().st_size

        def tell(name: str, index: int, total: int) -> None:
            run.progress(Step(Stage.MEASURE, index, total, name, total_bytes * index // total, total_bytes))

        with importance.stored(self.made, run.output) as imatrix:
            return chosen(
                choice,
                self._source,
                copy,
                imatrix=imatrix,
                calibration=None if run.request.importance is None else run.request.importance.calibration,
                threads=self._threads,
                told=tell,
            )

    def quantize(self, choice: Choice) -> None:
        """Make the output.

        Raises:
            NativeFailure: llama.cpp failed, or did other than it was told.
        """
        run, made = self._run, self.made
        total_bytes = sum(tensor.n_bytes for tensor in verify_gguf(self._source).tensors)
        done = 0

        def tell(tensor: native.Tensor) -> None:
            nonlocal done
            run.progress(Step(Stage.QUANTIZE, tensor.index, tensor.total, tensor.name, done, total_bytes))
            done += tensor.n_bytes

        with partial(run.output) as path, importance.stored(made, run.output) as imatrix:
            order = native.Order(
                str(self._source),
                str(path),
                choice.target.ftype,
                self._threads,
                self._requantize,
                dry_run=False,
                types=choice.pairs,
                imatrix=imatrix,
                keys=(*(() if made is None else made.keys), *gguf_receipt.reserved_pieces()),
            )
            native.run(order, tell)
            choice.check_kept(path)
            deliver(run, path, made)
