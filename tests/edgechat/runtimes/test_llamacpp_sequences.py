"""truncate, evict, fork and free, against the bare primitives of llama.cpp and against fresh contexts."""

import ctypes
import random
from typing import Any

import numpy as np
import pytest

from edgechat.records import Capabilities
from edgechat.runtimes.base import Chunk, ContextFull, Logits, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime, abi
from tests.edgechat.runtimes.agreement import agree, distance


def prefill(runtime: LlamaCppRuntime, sequence: int, tokens: list[int]) -> Logits:
    """Append tokens, and the logits after the last."""
    start = runtime.length(sequence)
    logits = np.empty(0, dtype=np.float32)
    for done in range(0, len(tokens), runtime.n_batch):
        part = tokens[done : done + runtime.n_batch]
        logits = runtime.decode([Chunk(sequence, part, start + done)])[0].copy()
    return logits


def native_span(runtime: LlamaCppRuntime, sequence: int) -> tuple[int, int]:
    """First and last position that llama.cpp itself holds."""
    llama: Any = abi.llama()
    return (
        llama.llama_memory_seq_pos_min(runtime._cache._memory, sequence),
        llama.llama_memory_seq_pos_max(runtime._cache._memory, sequence),
    )


def consistent(runtime: LlamaCppRuntime) -> None:
    for sequence in range(runtime.n_sequences):
        length = runtime.length(sequence)
        assert native_span(runtime, sequence) == ((0, length - 1) if length else (-1, -1))


def test_capabilities_of_a_plain_model(runtime: LlamaCppRuntime) -> None:
    assert runtime.can == Capabilities(shift=True, rollback=-1, fork=True)
    assert runtime.info.can == runtime.can


def test_truncate_forgets_exactly_the_tail(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    prefill(runtime, 0, prose[:60])
    expected = prefill(runtime, 0, prose[60:70])
    prefill(runtime, 0, prose[200:240])
    runtime.truncate(0, 60)
    assert runtime.length(0) == 60
    consistent(runtime)
    # The same kernels over the same cells: not a bit may differ.
    np.testing.assert_array_equal(prefill(runtime, 0, prose[60:70]), expected)


def test_truncate_to_nothing_and_to_the_same(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    prefill(runtime, 0, prose[:10])
    runtime.truncate(0, 10)
    runtime.truncate(0, 0)
    assert runtime.length(0) == 0
    consistent(runtime)
    for length in (-1, 1):
        with pytest.raises(ValueError, match="can't be cut"):
            runtime.truncate(0, length)


def test_evict_is_what_llama_cpps_own_primitives_give(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    llama: Any = abi.llama()
    prefill(runtime, 1, prose[:100])
    llama.llama_memory_seq_rm(runtime._cache._memory, 1, 10, 40)
    llama.llama_memory_seq_add(runtime._cache._memory, 1, 40, -1, -30)
    runtime._cache.lengths[1] = 70
    expected = prefill(runtime, 1, prose[100:120])
    runtime.free(1)

    prefill(runtime, 0, prose[:100])
    runtime.evict(0, 10, 40)
    assert runtime.length(0) == 70
    consistent(runtime)
    np.testing.assert_array_equal(prefill(runtime, 0, prose[100:120]), expected)


def test_evict_of_the_beginning_is_nearly_a_fresh_start(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    """Keys are rotated to where a fresh context has them; only the first layers' cells are quite the same,
    since the others have seen what was evicted. So: near, and nearer than to the unevicted."""
    whole = prefill(runtime, 1, prose[:180])
    fresh = prefill(runtime, 2, prose[60:180])
    prefill(runtime, 0, prose[:150])
    runtime.evict(0, 0, 60)
    evicted = prefill(runtime, 0, prose[150:180])

    assert distance(evicted, fresh) < 0.35
    assert evicted.argmax() in np.argsort(whole)[-5:]


def test_evict_at_the_end_is_truncate(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    prefill(runtime, 0, prose[:50])
    runtime.evict(0, 20, 20)
    assert runtime.length(0) == 50
    runtime.evict(0, 30, 50)
    assert runtime.length(0) == 30
    consistent(runtime)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 3), (0, 21), (21, 22)])
def test_evict_outside_the_sequence(
    runtime: LlamaCppRuntime, prose: list[int], start: int, stop: int
) -> None:
    prefill(runtime, 0, prose[:20])
    with pytest.raises(ValueError, match=r"no -?[0-9]+ to"):
        runtime.evict(0, start, stop)
    assert runtime.length(0) == 20


def test_fork_shares_cells_and_then_goes_its_own_way(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    # 440 of 512 cells: without sharing there is room for one only.
    prefill(runtime, 0, (prose * 2)[:440])
    runtime.fork(0, 1, 440)
    runtime.fork(1, 2, 220)
    assert [runtime.length(sequence) for sequence in range(3)] == [440, 440, 220]
    consistent(runtime)
    one = prefill(runtime, 0, prose[10:20])
    two = prefill(runtime, 1, prose[10:20])
    agree(one, two)
    prefill(runtime, 2, prose[:30])
    runtime.free(0)
    runtime.truncate(1, 440)
    agree(prefill(runtime, 1, prose[10:20]), two)
    consistent(runtime)


def test_fork_replaces_what_the_child_held(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    prefill(runtime, 0, prose[:30])
    prefill(runtime, 1, prose[100:180])
    runtime.fork(0, 1, 20)
    assert runtime.length(1) == 20
    runtime.fork(0, 1, 0)
    assert runtime.length(1) == 0
    consistent(runtime)


@pytest.mark.parametrize(
    ("parent", "child", "length"), [(0, 0, 5), (0, 1, 31), (0, 1, -1), (0, 3, 5), (3, 0, 0)]
)
def test_forks_that_can_not_be(
    runtime: LlamaCppRuntime, prose: list[int], parent: int, child: int, length: int
) -> None:
    prefill(runtime, 0, prose[:30])
    with pytest.raises(ValueError, match="sequence"):
        runtime.fork(parent, child, length)
    assert runtime.length(0) == 30


def test_evict_of_a_fork_leaves_its_parent_alone(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    """llama.cpp would move the shared cells of both."""
    prefill(runtime, 0, prose[:100])
    expected_parent = prefill(runtime, 0, prose[100:110])
    runtime.truncate(0, 100)
    prefill(runtime, 1, prose[:100])
    runtime.evict(1, 10, 40)
    expected_child = prefill(runtime, 1, prose[100:110])
    runtime.free(1)

    runtime.fork(0, 1, 100)
    runtime.evict(1, 10, 40)
    consistent(runtime)
    assert [runtime.length(0), runtime.length(1)] == [100, 70]
    agree(prefill(runtime, 1, prose[100:110]), expected_child)
    agree(prefill(runtime, 0, prose[100:110]), expected_parent)
    consistent(runtime)


def test_evict_of_a_fork_without_room_for_a_copy(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    prefill(runtime, 0, prose[:350])
    runtime.fork(0, 1, 350)
    with pytest.raises(ContextFull):
        runtime.evict(1, 10, 40)
    assert [runtime.length(0), runtime.length(1)] == [350, 350]
    consistent(runtime)
    runtime.evict(1, 325, 350)  # nothing is moved: no copy
    runtime.free(0)
    runtime.evict(1, 10, 40)
    consistent(runtime)


def test_what_is_not_there(runtime: LlamaCppRuntime) -> None:
    calls = (
        lambda: runtime.length(3),
        lambda: runtime.length(-1),
        lambda: runtime.free(256),
        lambda: runtime.truncate(300, 0),
        lambda: runtime.evict(3, 0, 0),
        lambda: runtime.export_state(3),
        lambda: runtime.import_state(-1, b""),
    )
    for call in calls:
        with pytest.raises(ValueError, match="no sequence"):
            call()


def test_any_order_of_calls_keeps_our_lengths_those_of_llama_cpp(
    runtime: LlamaCppRuntime, prose: list[int]
) -> None:
    dice = random.Random(20)
    for _ in range(60):
        sequence, other = dice.sample(range(3), 2)
        length = runtime.length(sequence)
        start, stop = sorted((dice.randint(0, length), dice.randint(0, length)))
        try:
            match dice.randrange(7):
                case 0 | 1 | 2:
                    count = dice.randint(1, 40)
                    runtime.decode([Chunk(sequence, prose[:count], length, Wanted.NONE)])
                case 3:
                    runtime.truncate(sequence, start)
                case 4:
                    runtime.evict(sequence, start, stop)
                case 5:
                    runtime.fork(sequence, other, start)
                case 6:
                    runtime.free(sequence) if dice.random() < 0.2 else None
        except ContextFull:
            runtime.free(sequence)
        consistent(runtime)


def test_a_failed_decode_leaves_sequences_to_be_freed(
    runtime: LlamaCppRuntime, prose: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgechat.runtimes.base import DecodeFailed

    prefill(runtime, 0, prose[:10])
    prefill(runtime, 1, prose[:10])
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "_decode", lambda *_: -3)
        with pytest.raises(DecodeFailed, match="-3"):
            runtime.decode([Chunk(0, [1], 10)])
    calls = (
        lambda: runtime.length(0),
        lambda: runtime.truncate(0, 5),
        lambda: runtime.decode([Chunk(0, [1], 10)]),
        lambda: runtime.export_state(0),
    )
    for call in calls:
        with pytest.raises(ValueError, match="must be freed"):
            call()
    assert runtime.length(1) == 10
    runtime.free(0)
    prefill(runtime, 0, prose[:10])
    consistent(runtime)


def test_window_layers_keep_all_they_have_seen(gemma: LlamaCppRuntime) -> None:
    """Gemma's window is 512 tokens; truncating from 1,500 to 700 needs cells that left it long ago."""
    tokens = [2, *gemma.tokenizer.encode("one two three four five six seven eight nine ten " * 160)][:1500]
    gemma.free(0)
    gemma.free(1)
    prefill(gemma, 0, tokens[:700])
    expected = prefill(gemma, 0, tokens[700:720])
    prefill(gemma, 0, tokens[720:])
    assert gemma.can_truncate(0, 700)
    gemma.truncate(0, 700)
    np.testing.assert_array_equal(prefill(gemma, 0, tokens[700:720]), expected)
    gemma.free(0)


def test_a_restored_sequence_can_not_go_back_past_its_window(gemma: LlamaCppRuntime) -> None:
    """llama.cpp saves of window layers only the window, and would decode on from the wrong context."""
    tokens = [2, *gemma.tokenizer.encode("one two three four five six seven eight nine ten " * 160)][:1500]
    gemma.free(0)
    gemma.free(1)
    prefill(gemma, 0, tokens)
    expected = prefill(gemma, 0, [tokens[3]])
    gemma.truncate(0, 1500)
    saved = gemma.export_state(0)
    gemma.free(0)
    gemma.import_state(1, saved)
    agree(prefill(gemma, 1, [tokens[3]]), expected)
    assert not gemma.can_truncate(1, 1400)
    for call in (
        lambda: gemma.truncate(1, 1400),
        lambda: gemma.evict(1, 600, 1300),
        lambda: gemma.fork(1, 0, 1400),
    ):
        with pytest.raises(ValueError, match="sequence 1"):
            call()
    assert gemma.length(1) == 1501
    assert gemma.can_truncate(1, 0)
    gemma.evict(1, 10, 200)  # the window stays inside what is there
    assert gemma.length(1) == 1311
    gemma.free(1)


def test_the_batch_that_llama_cpp_gets(runtime: LlamaCppRuntime) -> None:
    struct = runtime._batch.struct
    runtime.decode(
        [Chunk(0, [10, 11, 12], 0, Wanted.ALL), Chunk(2, [20, 21], 0), Chunk(1, [30], 0, Wanted.NONE)]
    )
    assert struct.n_tokens == 6
    assert struct.token[:6] == [10, 11, 12, 20, 21, 30]
    assert struct.pos[:6] == [0, 1, 2, 0, 1, 0]
    assert struct.n_seq_id[:6] == [1] * 6
    assert [struct.seq_id[i][0] for i in range(6)] == [0, 0, 0, 2, 2, 1]
    assert struct.logits[:6] == [1, 1, 1, 0, 1, 0]
    assert ctypes.sizeof(struct) == 56
