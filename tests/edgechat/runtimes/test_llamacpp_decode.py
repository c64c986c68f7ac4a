"""Decoding against llama-cpp-python's own high-level class, and every misuse that would abort."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgechat.runtimes.base import Chunk, ContextFull, Logits, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime
from tests.edgechat.runtimes.agreement import agree

# What float32 sums in another order may differ by, for logits of about 20.
ROUNDING = 2e-3


@pytest.fixture(scope="module")
def reference(starter_gguf: Path, prose: list[int], *, products: bool) -> Iterator[Logits]:
    """Logits of the first 200 tokens of `prose` by llama_cpp.Llama. # [200, n_vocab]"""
    import llama_cpp

    llama = llama_cpp.Llama(
        str(starter_gguf),
        n_ctx=512,
        n_batch=256,
        n_ubatch=128 if products else 256,  # four sequences share 128 evenly
        n_threads=2,
        logits_all=True,
        flash_attn=not products,
        verbose=False,
    )
    llama.eval(prose[:200])
    yield llama.scores[:200].copy()
    llama.close()


def test_logits_are_those_of_the_high_level_class(
    runtime: LlamaCppRuntime, prose: list[int], reference: Logits
) -> None:
    ours = runtime.decode([Chunk(0, prose[:200], 0, Wanted.ALL)])
    assert ours.shape == (200, 49152)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, reference, atol=ROUNDING)


def test_the_last_row_is_the_last_of_all_rows(
    runtime: LlamaCppRuntime, prose: list[int], reference: Logits
) -> None:
    row = runtime.decode([Chunk(0, prose[:200], 0)])
    assert row.shape == (1, 49152)
    np.testing.assert_allclose(row[0], reference[-1], atol=ROUNDING)


def test_logits_are_not_copied(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    first = runtime.decode([Chunk(0, prose[:5], 0)])
    assert not first.flags.owndata
    address = first.ctypes.data
    assert runtime.decode([Chunk(0, prose[5:6], 5)]).ctypes.data == address


@pytest.mark.parametrize("slices", [(100, 100), (1, 199), (199, 1), (64, 64, 64, 8)])
def test_a_prompt_in_slices_is_the_prompt_at_once(
    runtime: LlamaCppRuntime, prose: list[int], reference: Logits, slices: tuple[int, ...]
) -> None:
    start = 0
    for size in slices[:-1]:
        rows = runtime.decode([Chunk(0, prose[start : start + size], start, Wanted.NONE)])
        assert rows.shape == (0, 49152)
        start += size
    last = runtime.decode([Chunk(0, prose[start:200], start)])[0]
    assert runtime.length(0) == 200
    agree(last, reference[-1])


def test_sequences_in_one_batch_do_not_see_each_other(
    runtime: LlamaCppRuntime, prose: list[int], reference: Logits
) -> None:
    other = runtime.tokenizer.encode("import numpy as np\n\ndef mean(values):\n    return np.")
    alone = runtime.decode([Chunk(0, other, 0)])[0].copy()
    runtime.free(0)
    rows = runtime.decode([Chunk(2, prose[:150], 0), Chunk(0, other, 0), Chunk(1, prose[:40], 0, Wanted.ALL)])
    assert rows.shape == (1 + 1 + 40, 49152)
    agree(rows[0], reference[149])
    agree(rows[1], alone)
    for row in range(40):
        agree(rows[2 + row], reference[row])
    assert [runtime.length(sequence) for sequence in range(3)] == [len(other), 40, 150]


def test_one_token_at_a_time_of_several_sequences(
    runtime: LlamaCppRuntime, prose: list[int], reference: Logits
) -> None:
    runtime.decode([Chunk(0, prose[:50], 0, Wanted.NONE), Chunk(1, prose[:80], 0, Wanted.NONE)])
    for step in range(10):
        rows = runtime.decode(
            [Chunk(1, [prose[80 + step]], 80 + step), Chunk(0, [prose[50 + step]], 50 + step)]
        )
        agree(rows[0], reference[80 + step])
        agree(rows[1], reference[50 + step])


def test_more_rows_than_llama_cpp_gives_at_once(
    runtime: LlamaCppRuntime, prose: list[int], reference: Logits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_max_rows", 30)
    batch = [
        Chunk(1, prose[:20], 0),
        Chunk(0, prose[:100], 0, Wanted.ALL),
        Chunk(2, prose[:3], 0, Wanted.NONE),
    ]
    rows = runtime.decode(batch)
    assert rows.shape == (101, 49152)
    agree(rows[0], reference[19])
    agree(rows[1:], reference[:100])
    assert [runtime.length(sequence) for sequence in range(3)] == [100, 20, 3]


def test_a_full_context_leaves_the_cache_as_it_was(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    runtime.decode([Chunk(0, prose[:256], 0, Wanted.NONE)])
    before = runtime.decode([Chunk(1, prose[:100], 0)])[0].copy()
    with pytest.raises(ContextFull):
        runtime.decode([Chunk(2, prose[:160], 0), Chunk(1, prose[100:101], 100)])
    assert [runtime.length(sequence) for sequence in range(3)] == [256, 100, 0]
    runtime.truncate(1, 99)
    again = runtime.decode([Chunk(1, prose[99:100], 99)])[0]
    agree(again, before)
    runtime.free(0)
    runtime.decode([Chunk(2, prose[:160], 0)])


def test_a_full_context_in_the_second_part_undoes_the_first(
    runtime: LlamaCppRuntime, prose: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_max_rows", 64)
    runtime.decode([Chunk(0, prose[:256], 0, Wanted.NONE)])
    runtime.decode([Chunk(1, prose[:100], 0)])
    with pytest.raises(ContextFull):
        runtime.decode([Chunk(1, prose[100:300], 100, Wanted.ALL)])
    assert runtime.length(1) == 100
    runtime.decode([Chunk(1, prose[100:150], 100, Wanted.ALL)])


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ([], "empty"),
        ([Chunk(0, [1] * 257, 0)], "more than 256"),
        ([Chunk(0, [1] * 200, 0), Chunk(1, [1] * 57, 0)], "more than 256"),
        ([Chunk(3, [1], 0)], "no sequence 3"),
        ([Chunk(300, [1], 0)], "no sequence 300"),
        ([Chunk(0, [1], 5)], "can't start at 5"),
        ([Chunk(0, [1], 0), Chunk(0, [2], 1)], "twice"),
        ([Chunk(0, [1], 0), Chunk(0, [2], 0)], "twice"),
        ([Chunk(0, [49152], 0)], "no token 49152"),
        ([Chunk(0, [-1], 0)], "no token -1"),
        ([Chunk(0, [5, 49152], 0)], "outside the vocabulary"),
        ([Chunk(0, [5, -1], 0)], "outside the vocabulary"),
        ([Chunk(0, [5, 2**40], 0)], "outside the vocabulary"),
        ([Chunk(0, [5, 2**70], 0)], "integers"),
        ([Chunk(0, [1.5, 2.5], 0)], "integers"),  # type: ignore[list-item]
        ([Chunk(0, ["a", "b"], 0)], "integers"),  # type: ignore[list-item]
    ],
)
def test_a_batch_that_would_abort_is_refused(runtime: LlamaCppRuntime, batch: list[Chunk], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        runtime.decode(batch)
    assert [runtime.length(sequence) for sequence in range(3)] == [0, 0, 0]


def test_a_token_that_is_no_integer_is_refused(runtime: LlamaCppRuntime) -> None:
    with pytest.raises(TypeError):
        runtime.decode([Chunk(0, [1.5], 0)])  # type: ignore[list-item]
    assert runtime.length(0) == 0


def test_threads_can_be_changed(runtime: LlamaCppRuntime, prose: list[int], reference: Logits) -> None:
    runtime.set_threads(1, 1)
    one = runtime.decode([Chunk(0, prose[:20], 0)])[0].copy()
    runtime.set_threads(2, 2)
    agree(one, reference[19])
    for wrong in ((0, 1), (1, 0), (513, 1), (-1, 2)):
        with pytest.raises(ValueError, match="threads"):
            runtime.set_threads(*wrong)
