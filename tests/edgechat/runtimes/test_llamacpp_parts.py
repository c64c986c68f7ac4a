"""The small parts: the log, the fingerprint, who shares cells with whom."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.runtimes.llamacpp import fingerprint as module
from edgechat.runtimes.llamacpp.fingerprint import fingerprint, parts
from edgechat.runtimes.llamacpp.logs import Log
from edgechat.runtimes.llamacpp.sharing import Sharing

INFO, WARN, ERROR, CONT = 2, 3, 4, 5


def test_the_last_telling_error() -> None:
    log = Log()
    log.add(ERROR, "gguf_init_from_file: failed to open\n")
    log.add(INFO, "load_tensors: fine\n")
    log.add(ERROR, "llama_model_load: error loading model: tensor 'a' has\nno data\n")
    log.add(ERROR, "llama_model_load_from_file_impl: failed to load model\n")
    assert log.last_error() == "tensor 'a' has no data"
    log.clear()
    assert log.last_error() == ""
    log.add(ERROR, "llama_model_load_from_file_impl: failed to load model\n")
    assert log.last_error() == "failed to load model"


def test_lines_are_continued_and_debugging_is_dropped() -> None:
    log = Log()
    log.add(INFO, "loading")
    for _ in range(3):
        log.add(CONT, ".")
    log.add(1, "debug")
    log.add(CONT, " more debug\n")
    log.add(WARN, "done\n")
    assert log.lines == ["loading...", "done"]


def test_the_log_is_bounded() -> None:
    log = Log(capacity=3)
    log.add(CONT, "of nothing")
    for number in range(10):
        log.add(INFO, f"{number}\n")
    log.add(INFO, "x" * 10_000)
    for _ in range(1000):
        log.add(CONT, "y" * 100)
    assert log.lines[:2] == ["8", "9"]
    assert len(log.lines[2]) == 500


def test_the_fingerprint_sees_size_head_and_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_BYTES", 1000)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 10)
    data = bytes(i * 7 % 251 for i in range(100_000))

    def of(changed: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(changed)
        return fingerprint(path)

    whole = of(data)
    assert whole == of(data)
    assert len(whole) == 64
    for at in (0, 999, 1000, 1009, len(data) - 10, len(data) - 1):
        assert of(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) != whole
    assert of(data[:-1]) != whole
    assert of(data + b"\0") != whole
    assert of(b"") != of(b"\0")
    short = data[:1005]
    assert of(short) != of(short[:-1] + b"\xff")


def test_the_parts_of_a_split_model(tmp_path: Path) -> None:
    one = tmp_path / "m.gguf"
    assert parts(one) == [one]
    split = [tmp_path / f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    for path in split:
        path.write_bytes(path.name.encode())
    assert parts(split[0]) == split
    before = fingerprint(split[0])
    split[2].write_bytes(b"another")
    assert fingerprint(split[0]) != before
    split[1].unlink()
    assert parts(split[0]) == [split[0], split[2]]


def test_who_shares_with_whom() -> None:
    sharing = Sharing()
    sharing.fork(0, 1, 100)
    sharing.fork(1, 2, 60)
    assert [sharing.shared(sequence) for sequence in range(3)] == [100, 100, 60]
    sharing.truncate(1, 40)
    assert [sharing.shared(sequence) for sequence in range(3)] == [60, 40, 60]
    sharing.free(0)
    assert [sharing.shared(sequence) for sequence in range(3)] == [0, 40, 40]
    sharing.free(2)
    assert sharing.shared(1) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("grow", "fork", "truncate", "free")),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_sharing_is_that_of_the_cells_themselves(steps: list[tuple[str, int, int, int]]) -> None:
    """Against a model that keeps the cells: each sequence a list of cell numbers."""
    sharing = Sharing()
    cells: list[list[int]] = [[] for _ in range(4)]
    fresh = iter(range(10_000))
    for verb, one, other, amount in steps:
        length = min(amount, len(cells[one]))
        match verb:
            case "grow":
                cells[one] += [next(fresh) for _ in range(amount)]
            case "fork" if one != other:
                sharing.free(other)
                cells[other] = cells[one][:length]
                if length:
                    sharing.fork(one, other, length)
            case "truncate":
                sharing.truncate(one, length)
                del cells[one][length:]
            case "free":
                sharing.free(one)
                cells[one] = []
        for sequence in range(4):
            others = [set(cells[s]) for s in range(4) if s != sequence]
            assert sharing.shared(sequence) == max(len(set(cells[sequence]) & held) for held in others)
