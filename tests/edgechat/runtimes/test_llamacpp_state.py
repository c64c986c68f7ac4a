"""Saved sequences: they come back the same, or not at all."""

import numpy as np
import pytest

from edgechat.records import LoadSettings
from edgechat.runtimes.base import Chunk, ContextFull, Wanted
from edgechat.runtimes.llamacpp import LlamaCppRuntime, state
from tests.edgechat.runtimes.agreement import agree

KEY = state.StateKey("ab" * 32, "f16")


def test_a_restored_sequence_goes_on_as_the_saved_one(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    runtime.decode([Chunk(0, prose[:120], 0, Wanted.NONE)])
    saved = runtime.export_state(0)
    expected = runtime.decode([Chunk(0, prose[120:130], 120)])[0].copy()
    runtime.import_state(0, saved)
    assert runtime.length(0) == 120
    assert runtime.export_state(0) == saved
    np.testing.assert_array_equal(runtime.decode([Chunk(0, prose[120:130], 120)])[0], expected)
    # 120 tokens of 23,040 bytes, and little else.
    assert 120 * runtime.info.kv_bytes_per_token < len(saved) < 120 * runtime.info.kv_bytes_per_token + 8192


def test_a_state_comes_back_in_any_sequence(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    runtime.decode([Chunk(0, prose[:120], 0, Wanted.NONE)])
    saved = runtime.export_state(0)
    expected = runtime.decode([Chunk(0, prose[120:130], 120)])[0].copy()
    runtime.decode([Chunk(1, prose[:30], 0, Wanted.NONE)])
    runtime.import_state(1, saved)
    assert [runtime.length(0), runtime.length(1)] == [130, 120]
    agree(runtime.decode([Chunk(1, prose[120:130], 120)])[0], expected)


def test_a_state_saved_right_after_an_eviction(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    """llama.cpp moves keys only at the next decode: it would save new positions with old keys."""
    runtime.decode([Chunk(0, prose[:120], 0, Wanted.NONE)])
    runtime.evict(0, 20, 70)
    saved = runtime.export_state(0)
    runtime.free(0)

    runtime.decode([Chunk(0, prose[:120], 0, Wanted.NONE)])
    runtime.evict(0, 20, 70)
    runtime.decode([Chunk(0, prose[:1], 70)])
    runtime.truncate(0, 70)
    assert runtime.export_state(0) == saved


def test_a_state_saved_after_an_eviction_that_freed_no_cell(
    runtime: LlamaCppRuntime, prose: list[int]
) -> None:
    for start in range(0, 512, 256):
        runtime.decode([Chunk(0, (prose * 2)[start : start + 256], start, Wanted.NONE)])
    runtime.fork(0, 1, 30)
    runtime.evict(0, 20, 30)  # the fork still holds these cells: none is free
    saved = runtime.export_state(0)
    runtime.free(1)
    expected = runtime.decode([Chunk(0, prose[:1], 502)])[0].copy()
    runtime.free(0)
    runtime.import_state(2, saved)
    agree(runtime.decode([Chunk(2, prose[:1], 502)])[0], expected)


def test_saving_nothing_is_refused(runtime: LlamaCppRuntime) -> None:
    with pytest.raises(ValueError, match="nothing to save"):
        runtime.export_state(0)


def test_damage_is_refused_and_leaves_the_sequence_empty(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    runtime.decode([Chunk(0, prose[:8], 0, Wanted.NONE)])
    saved = runtime.export_state(0)
    cases = [b"", b"x", saved[:-1], saved + b"\0", saved[: state.HEADER.size], bytes(len(saved))]
    for at in (0, 15, 20, 60, 85, 93, 100, state.HEADER.size, state.HEADER.size + 4, len(saved) - 1):
        damaged = bytearray(saved)
        damaged[at] ^= 1
        cases.append(bytes(damaged))
    for case in cases:
        runtime.decode([Chunk(1, prose[:8], 0, Wanted.NONE)])
        with pytest.raises(ValueError, match="saved state"):
            runtime.import_state(1, case)
        assert runtime.length(1) == 0
    runtime.import_state(1, saved)
    assert runtime.length(1) == 8


def test_a_state_that_has_no_room(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    runtime.decode([Chunk(0, prose[:256], 0, Wanted.NONE)])
    saved = runtime.export_state(0)
    runtime.fork(0, 1, 256)
    runtime.decode([Chunk(1, prose[:100], 256, Wanted.NONE)])
    with pytest.raises(ContextFull):
        runtime.import_state(2, saved)
    assert [runtime.length(sequence) for sequence in range(3)] == [256, 356, 0]


def test_a_state_of_other_settings(runtime: LlamaCppRuntime, prose: list[int]) -> None:
    runtime.decode([Chunk(0, prose[:8], 0, Wanted.NONE)])
    saved = runtime.export_state(0)
    settings = LoadSettings(runtime.info.path, n_ctx=256, n_sequences=1, n_threads=2, kv_type="q8_0")
    other = LlamaCppRuntime.load(settings)
    try:
        with pytest.raises(ValueError, match="other context settings"):
            other.import_state(0, saved)
    finally:
        other.close()


def test_the_header_binds_model_settings_and_length() -> None:
    buffer = bytearray(state.HEADER.size) + b"cells"
    state.pack(KEY, 7, buffer)
    tokens, blob = state.unpack(KEY, bytes(buffer))
    assert (tokens, bytes(blob)) == (7, b"cells")
    with pytest.raises(ValueError, match="another model"):
        state.unpack(state.StateKey("cd" * 32, "f16"), bytes(buffer))
    with pytest.raises(ValueError, match="other context settings"):
        state.unpack(state.StateKey("ab" * 32, "q8_0"), bytes(buffer))
    for at in range(len(buffer)):
        damaged = bytearray(buffer)
        damaged[at] ^= 0x40
        with pytest.raises(ValueError, match="saved state"):
            state.unpack(KEY, bytes(damaged))
