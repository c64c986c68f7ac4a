"""llama.cpp's quantization in its own process: what it tells, and how it fails."""

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from models.gguf import GGMLType, read_header
from quantize import native
from quantize.errors import NativeFailure
from quantize.formats.gguf import OutputTensor
from quantize.gguf_receipt import KEY, PIECES_BYTES, ROOM
from quantize.pipeline import Request, run
from quantize.plan import USABLE, target_of
from quantize.type_choice import NO_WISHES, Choice, Chooser
from tests.oracles.llama_reference import loaded
from tests.oracles.raw_checkpoint import write


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in float32."""
    folder = tmp_path_factory.mktemp("tiny")
    return run(Request(write(folder / "model"), target_of("f32"), folder / "tiny.gguf")).path


def order(source: Path, output: Path, kind: str = "q4_0") -> native.Order:
    return native.Order(str(source), str(output), target_of(kind).ftype, 1, False, dry_run=False)


def helpers() -> list[psutil.Process]:
    """Our processes that quantize."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "quantize.native" in child.cmdline():
                found.append(child)
    return found


def test_a_dry_run_says_what_a_run_does(source: Path, tmp_path: Path) -> None:
    """Type by type; and each tensor is told when it is begun."""
    told: list[native.Tensor] = []
    expected = native.exact_types(source, target_of("q4_k_m").ftype, requantize=False)
    native.run(order(source, tmp_path / "out.gguf", "q4_k_m"), told.append)
    header = read_header(tmp_path / "out.gguf")
    assert {tensor.name: tensor.type for tensor in header.tensors} == {
        name: tensor.becomes for name, tensor in expected.items()
    }
    assert {tensor.name: tensor.n_bytes for tensor in header.tensors} == {
        name: tensor.becomes_bytes for name, tensor in expected.items()
    }
    assert [tensor.index for tensor in told] == list(range(1, len(header.tensors) + 1))
    assert {tensor.total for tensor in told} == {len(header.tensors)}
    assert GGMLType.F32 in {tensor.type for tensor in header.tensors}


@pytest.mark.parametrize(
    "kind",
    # Q1_0 needs rows of 128, which this model's are not.
    [name for name in USABLE if target_of(name).direct is None and name != "q1_0"],
)
def test_every_type_is_written_and_loads(source: Path, tmp_path: Path, kind: str) -> None:
    """With the size that was foreseen, and the number that its name stands for."""
    target = target_of(kind)
    header = read_header(source)
    tensors = [OutputTensor(one.name, one.shape[::-1], one.type) for one in header.tensors]
    # The source's receipt, a key with a text, makes room for that of the result.
    receipt = 8 + len(KEY) + 4 + 8 + ROOM
    header_bytes = header.n_header_bytes - receipt + PIECES_BYTES
    chooser = Chooser(source, tensors, target, NO_WISHES, header_bytes=header_bytes)
    foreseen = chooser.most_bytes(Choice(target), requantize=False, imatrix=False)
    result = run(Request(source, target, tmp_path / "out.gguf"))
    assert result.path.stat().st_size == result.n_bytes == foreseen
    assert read_header(result.path).metadata["general.file_type"] == target.ftype
    with loaded(result.path, 64) as reference:
        assert reference.logits([1, 2, 3]).shape == (3, reference.n_vocab)


def test_refusal_comes_with_llama_cpps_own_words(source: Path, tmp_path: Path) -> None:
    """A damaged file, and an output that can't be written."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(source.read_bytes()[:3000])
    with pytest.raises(
        NativeFailure, match=r"llama\.cpp could not quantize .*broken\.gguf: .*\(its process ended with 1\)"
    ):
        native.run(order(broken, tmp_path / "out.gguf"), lambda _: None)
    with pytest.raises(NativeFailure, match=r"could not quantize"):
        native.run(order(source, tmp_path / "nowhere" / "out.gguf"), lambda _: None)


@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_a_process_that_dies_is_said(starter_gguf: Path, tmp_path: Path) -> None:
    """By the signal that it died of. The model is large enough to die in the middle of."""

    def kill(_: native.Tensor) -> None:
        for child in helpers():
            child.send_signal(signal.SIGKILL)

    with pytest.raises(NativeFailure, match="its process died of signal 9"):
        native.run(replace(order(starter_gguf, tmp_path / "out.gguf"), requantize=True), kill)


def test_nothing_outlives_an_exception(source: Path, tmp_path: Path) -> None:
    """Ctrl-C while it works: its process is gone."""

    def interrupt(_: native.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        native.run(order(source, tmp_path / "out.gguf"), interrupt)
    assert not helpers()


def test_a_log_in_pieces() -> None:
    """llama.cpp logs parts of lines, and other lines between them."""
    reported: list[dict[str, object]] = []
    log = native._Log(reported.append, dry_run=False)
    for text in (
        "[   1/   2] a.weight       - [  64,   32,     1,     1], type =    f16, ",
        "converting to q4_K .. ",
        "size = 1\n",
    ):
        log.add(2, text)
    log.add(2, "unrelated\n")
    log.add(4, "llama_model_quantize: failed: ")
    log.add(4, "why\n")
    assert reported == [
        {
            "tensor": {
                "index": 1,
                "total": 2,
                "name": "a.weight",
                "n_bytes": 4096,
                "becomes": 1,
                "n_elements": 2048,
            }
        },
        {"words": "llama_model_quantize: failed: why"},
    ]
