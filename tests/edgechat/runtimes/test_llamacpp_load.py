"""What loading says of a model, and how it fails."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from edgechat.errors import BrokenModelError, EdgechatError, NotFoundError, ResourceError, UnsupportedError
from edgechat.hardware import Memory, physical_cores
from edgechat.library.estimate import outputs_max
from edgechat.records import KVType, LoadSettings
from edgechat.runtimes.base import Chunk, Runtime, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime, LoadCancelled
from edgechat.runtimes.llamacpp.devices import Device, DeviceKind
from edgechat.runtimes.llamacpp.dry_run import DryRun
from tests.edgechat.runtimes.agreement import agree

SMALL = {"n_ctx": 256, "n_sequences": 1, "n_threads": 2, "n_batch": 64}


def load(path: Path, **settings: object) -> LlamaCppRuntime:
    return LlamaCppRuntime.load(LoadSettings(str(path), **{**SMALL, **settings}))  # type: ignore[arg-type]


def test_it_is_a_runtime(loaded: LlamaCppRuntime) -> None:
    runtime: Runtime = loaded
    assert (runtime.n_ctx, runtime.n_batch, runtime.n_sequences) == (512, 256, 3)


def test_what_is_said_of_the_starter(loaded: LlamaCppRuntime, starter_gguf: Path) -> None:
    info = loaded.info
    assert info.name == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert info.path == str(starter_gguf)
    assert (info.architecture, info.quantization) == ("llama", "Q4_1")
    assert (info.n_vocab, info.n_layers, info.n_ctx_train, info.n_ctx) == (49152, 30, 8192, 512)
    assert info.n_params == 134_515_008
    assert info.size_bytes == 96_576_768
    # 30 layers, 3 heads of 64, keys and values, two bytes each.
    assert info.kv_bytes_per_token == 30 * 3 * 64 * 2 * 2
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template
    assert (info.backend, info.n_gpu_layers, info.n_threads) == ("CPU", 0, 2)
    assert loaded.notes == ()


def test_what_is_said_of_gemma(gemma: LlamaCppRuntime) -> None:
    info = gemma.info
    assert (info.architecture, info.quantization, info.n_layers) == ("gemma3", "Q4_K - Medium", 18)
    assert info.chat_template is None
    # 18 layers, one head of 256; those with a window keep as much as the others.
    assert info.kv_bytes_per_token == 18 * 1 * 256 * 2 * 2


def test_the_fingerprint_is_of_the_file(loaded: LlamaCppRuntime, starter_gguf: Path, tmp_path: Path) -> None:
    assert len(bytes.fromhex(loaded.info.fingerprint)) == hashlib.sha256().digest_size
    link = tmp_path / "other-name.gguf"
    os.symlink(starter_gguf, link)
    runtime = load(link)
    try:
        assert runtime.info.fingerprint == loaded.info.fingerprint
    finally:
        runtime.close()


@pytest.mark.parametrize(("kv_type", "bytes_per_block"), [("q8_0", 34), ("q4_0", 18)])
def test_quantized_caches(
    runtime: LlamaCppRuntime,
    starter_gguf: Path,
    prose: list[int],
    kv_type: KVType,
    bytes_per_block: int,
) -> None:
    expected = runtime.decode([Chunk(0, prose[:60], 0)])[0].copy()
    other = load(starter_gguf, kv_type=kv_type)
    try:
        assert other.info.kv_bytes_per_token == 30 * 3 * 64 * 2 * bytes_per_block // 32
        ours = other.decode([Chunk(0, prose[:60], 0)])[0]
        assert expected[ours.argmax()] > np.sort(expected)[-4]
        other.evict(0, 4, 20)
        other.decode([Chunk(0, prose[60:64], 44)])
        saved = other.export_state(0)
        other.import_state(0, saved)
    finally:
        other.close()


def test_no_mmap_and_one_thread(runtime: LlamaCppRuntime, starter_gguf: Path, prose: list[int]) -> None:
    other = load(starter_gguf, use_mmap=False, n_threads=1, n_gpu_layers=0)
    try:
        agree(other.decode([Chunk(0, prose[:30], 0)])[0], runtime.decode([Chunk(0, prose[:30], 0)])[0])
    finally:
        other.close()


def test_more_sequences_than_the_batch_has_tokens(starter_gguf: Path) -> None:
    """llama.cpp would abort."""
    runtime = load(starter_gguf, n_sequences=64, n_batch=32)
    try:
        assert runtime.n_batch >= 64
        rows = runtime.decode([Chunk(sequence, [500 + sequence], 0) for sequence in range(64)])
        assert rows.shape == (64, 49152)
    finally:
        runtime.close()


@pytest.mark.parametrize(("asked", "given"), [(1, 256), (256, 256), (257, 512), (1000, 1024)])
def test_the_context_comes_in_steps(starter_gguf: Path, asked: int, given: int) -> None:
    runtime = load(starter_gguf, n_ctx=asked)
    try:
        assert (runtime.n_ctx, runtime.info.n_ctx, runtime.n_batch) == (given, given, 64)
    finally:
        runtime.close()


def test_automatic_settings(starter_gguf: Path) -> None:
    runtime = LlamaCppRuntime.load(LoadSettings(str(starter_gguf)))
    try:
        assert runtime.n_ctx == 8192
        assert runtime.info.n_threads == physical_cores()
        assert runtime.notes == ()
    finally:
        runtime.close()


def test_more_context_than_trained_is_said(starter_gguf: Path) -> None:
    runtime = load(starter_gguf, n_ctx=8448)
    try:
        assert runtime.n_ctx == 8448
        assert len(runtime.notes) == 1
        assert "trained on 8192 tokens" in runtime.notes[0]
    finally:
        runtime.close()


def test_progress_rises_to_one(starter_gguf: Path) -> None:
    seen: list[float] = []
    runtime = LlamaCppRuntime.load(
        LoadSettings(str(starter_gguf), **SMALL), lambda done: not seen.append(done)
    )  # type: ignore[arg-type,func-returns-value]
    runtime.close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) <= 102


def test_progress_can_end_loading(starter_gguf: Path) -> None:
    with pytest.raises(LoadCancelled):
        LlamaCppRuntime.load(LoadSettings(str(starter_gguf), **SMALL), lambda done: done < 0.5)  # type: ignore[arg-type]


def test_an_error_in_progress_passes_through(starter_gguf: Path) -> None:
    def fail(done: float) -> bool:
        raise KeyError(done)

    with pytest.raises(KeyError):
        LlamaCppRuntime.load(LoadSettings(str(starter_gguf), **SMALL), fail)  # type: ignore[arg-type]


def failure(path: Path, **settings: object) -> EdgechatError:
    with pytest.raises(EdgechatError) as caught:
        load(path, **settings).close()
    assert "\n" not in str(caught.value)
    return caught.value


def test_files_that_are_none(tmp_path: Path) -> None:
    assert isinstance(failure(tmp_path / "nothing.gguf"), NotFoundError)
    assert "nothing.gguf" in str(failure(tmp_path / "nothing.gguf"))
    assert isinstance(failure(tmp_path), NotFoundError)
    assert "folder" in str(failure(tmp_path))


def test_files_that_are_broken(starter_gguf: Path, tmp_path: Path) -> None:
    whole = starter_gguf.read_bytes()
    broken = {
        "empty": b"",
        "garbage": bytes(range(256)) * 64,
        "magic": b"GGUF",
        "header": whole[:100_000],
        "truncated": whole[: len(whole) // 2],
        "name": whole.replace(b"blk.7.attn_q.weight", b"blk.7.attn_x.weight", 1),
    }
    for name, data in broken.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        error = failure(path)
        assert isinstance(error, BrokenModelError), (name, error)
        assert f"{name}.gguf" in str(error)
    assert "attn_q.weight" in str(failure(tmp_path / "name.gguf"))


def test_an_architecture_that_llama_cpp_does_not_know(starter_gguf: Path, tmp_path: Path) -> None:
    whole = starter_gguf.read_bytes()
    path = tmp_path / "new.gguf"
    path.write_bytes(whole.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lhama", 1))
    error = failure(path)
    assert isinstance(error, UnsupportedError)
    assert "unknown model architecture: 'lhama'" in str(error)


def test_a_context_that_memory_has_no_room_for(starter_gguf: Path) -> None:
    error = failure(starter_gguf, n_ctx=2**24)
    assert isinstance(error, ResourceError)
    # 2^24 tokens of 23,040 bytes are 386.5 GB; the machine could not have them.
    # The engine itself counts, too.
    assert "needs 388.9 GB" in str(error)
    assert str(error).endswith("try --ctx 8192")


def test_a_model_that_memory_has_no_room_for(starter_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgechat.hardware.memory", lambda held: Memory(2**30, 300 * 2**20))
    error = failure(starter_gguf)
    assert isinstance(error, ResourceError)
    # The engine's own 50 MiB are taken already, and count on both sides.
    assert "367.0 MB of memory can be taken" in str(error)
    assert "choose a smaller model" in str(error)


def test_a_context_that_would_fit_is_proposed(starter_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgechat.hardware.memory", lambda held: Memory(2**30, 500 * 2**20))
    error = failure(starter_gguf, n_ctx=8192, n_batch=512, fixed=("kv_type", "n_batch"))
    assert isinstance(error, ResourceError)
    context = int(str(error).rpartition("--ctx ")[2])
    assert 512 <= context < 8192
    runtime = load(starter_gguf, n_ctx=context, n_batch=512)
    runtime.decode([Chunk(0, [1], 0)])
    runtime.close()


def test_what_a_dry_run_says_does_not_depend_on_what_the_process_did_before(starter_gguf: Path) -> None:
    settings = LoadSettings(str(starter_gguf), n_ctx=512)
    ballast = [bytes(2**16) for _ in range(2**10)]  # which malloc gives back to the system at its leisure
    said = []
    for _ in range(3):
        with DryRun(starter_gguf) as dry:
            said.append(dry.needs(settings))
        ballast.clear()
    assert said[0] == said[1] == said[2] is not None


def test_a_gpu_that_is_not_there_is_said(starter_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = load(starter_gguf, n_gpu_layers=10)
    runtime.close()
    assert runtime.notes == ("llama.cpp was built without GPU support: it runs on the CPU",)
    monkeypatch.setattr("edgechat.runtimes.llamacpp.load.gpu_backends", lambda: ("CUDA",))
    for layers in (-1, 10):
        runtime = load(starter_gguf, n_gpu_layers=layers)
        runtime.close()
        assert runtime.notes == ("llama.cpp was built with CUDA, but found no GPU: it runs on the CPU",)
    runtime = load(starter_gguf, n_gpu_layers=0)
    runtime.close()
    assert runtime.notes == ()


def test_layers_that_no_gpu_took_are_said(starter_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("CUDA0", "Imaginary", DeviceKind.GPU, 2**30, 2**30)
    monkeypatch.setattr("edgechat.runtimes.llamacpp.load.gpus", lambda: (gpu,))
    runtime = load(starter_gguf)
    runtime.close()
    assert runtime.notes == ("the model does not fit on CUDA0 (Imaginary): it runs on the CPU",)
    assert runtime.info.backend == "CPU"


def test_a_closed_runtime_refuses_all(starter_gguf: Path) -> None:
    runtime = load(starter_gguf)
    runtime.close()
    runtime.close()
    calls = (
        lambda: runtime.decode([Chunk(0, [1], 0)]),
        lambda: runtime.length(0),
        lambda: runtime.free(0),
        lambda: runtime.truncate(0, 0),
        lambda: runtime.export_state(0),
        lambda: runtime.import_state(0, b""),
        lambda: runtime.set_threads(1, 1),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"no sequence|closed"):
            call()


def test_nothing_is_written_on_the_terminal(starter_gguf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runtime = load(starter_gguf)
    runtime.decode([Chunk(0, [1, 2, 3], 0, Wanted.ALL)])
    runtime.close()
    failure(Path(__file__))
    assert capfd.readouterr() == ("", "")


def test_rows_of_logits_are_bounded_in_bytes() -> None:
    assert outputs_max(49152, 512, 5) == 512  # 96 MiB
    assert outputs_max(262144, 512, 5) == 128  # 128 MiB
    assert outputs_max(2**24, 512, 5) == 64
    assert outputs_max(2**24, 512, 100) == 100
    assert outputs_max(262144, 32, 5) == 32
