"""A GGUF file in the making: its tensors are written, the whole is checked, flushed, and given its name."""

from dataclasses import replace
from pathlib import Path

from models.receipt import KEY
from models.verify import verify_gguf
from quantize import gguf_receipt
from quantize.convert import Conversion
from quantize.formats.gguf import data_bytes, header_bytes, write_tensor
from quantize.importance import Made
from quantize.partial import finish, partial
from quantize.plan import check_disk
from quantize.progress import Progress, Stage, Step
from quantize.request import Run
from quantize.tensors import Chunks, Job


def write_directly(run: Run, conversion: Conversion) -> None:
    """Write a conversion that is the result.

    Raises:
        NotEnoughDisk: there is no room for it.
    """
    metadata = {**conversion.metadata, KEY: gguf_receipt.reserved()}
    header = header_bytes(metadata, conversion.tensors)
    check_disk(run.output.parent, len(header) + data_bytes(conversion.tensors))
    with partial(run.output) as path:
        path.write_bytes(header)
        fill(path, len(header), conversion, run.progress)
        deliver(run, path)


def fill(path: Path, start: int, conversion: Conversion, progress: Progress) -> None:
    """Write all tensors into a file, behind a header of `start` bytes."""
    total_bytes = sum(job.source_bytes for job in conversion.jobs)
    total, done = len(conversion.jobs), 0
    with path.open("rb+") as file:
        file.seek(start)
        for index, job in enumerate(conversion.jobs, 1):
            step = Step(Stage.CONVERT, index, total, job.tensor.name, done, total_bytes)
            progress(step)
            write_tensor(file, job.tensor, _told(job, step, progress))
            done += job.source_bytes


def _told(job: Job, begun: Step, progress: Progress) -> Chunks:
    """The job's data; after each piece the progress is told."""
    written = 0
    for chunk in job.chunks():
        yield chunk
        written += len(chunk)
        part = job.source_bytes * written // job.tensor.n_bytes
        progress(replace(begun, done_bytes=begun.done_bytes + part))


def deliver(run: Run, path: Path, made: Made | None = None) -> None:
    """Check the finished file as one from strangers is checked, flush it, and give it its name.

    Args:
        run: whose output it becomes.
        path: the file, with room for a receipt in its metadata.
        made: the importance matrix that it was quantized with.

    Raises:
        BrokenModelFile: it is not sound.
    """
    header = verify_gguf(path)
    n = len(header.tensors)
    run.progress(Step(Stage.CHECK, n, n, run.output.name, header.file_size, header.file_size))
    request = run.request
    gguf_receipt.put(
        path, gguf_receipt.record_of(request.source, request.target, header, made, begun=run.begun)
    )
    verify_gguf(path)
    finish(path, run.output)
