"""The bytes of a saved sequence: a header of ours before llama.cpp's blob.

llama.cpp checks the shape of what it restores but not whose it is: the cells of another model of the same
shape load without a word. The header binds a state to the model, to the context's settings and to its
length, and its checksum keeps damaged bytes away from native code.
"""

import hashlib
import struct
from dataclasses import dataclass

MAGIC = b"EDGECHAT-KV\x00\x00\x00\x00\x01"  # the last byte is the version
HEADER = struct.Struct("<16s32s32sQQ32s")  # magic, model, settings, tokens, bytes, checksum


@dataclass(frozen=True, slots=True)
class StateKey:
    """What a state belongs to."""

    fingerprint: str
    """Of the model, in hex."""
    settings: str
    """All that changes the meaning of the cells: KV type, versions."""

    @property
    def hashed_settings(self) -> bytes:
        """32 bytes."""
        return hashlib.sha256(self.settings.encode()).digest()


def pack(key: StateKey, n_tokens: int, buffer: bytearray) -> None:
    """Write the header into the first HEADER.size bytes of `buffer`, whose rest is llama.cpp's blob."""
    blob = memoryview(buffer)[HEADER.size :]
    HEADER.pack_into(
        buffer,
        0,
        MAGIC,
        bytes.fromhex(key.fingerprint),
        key.hashed_settings,
        n_tokens,
        len(blob),
        _checksum(n_tokens, blob),
    )


def unpack(key: StateKey, state: bytes) -> tuple[int, memoryview]:
    """The number of tokens in a state, and llama.cpp's blob.

    Raises:
        ValueError: the state is damaged, or of another model or other settings.
    """
    if len(state) < HEADER.size or not state.startswith(MAGIC):
        raise ValueError("not a saved state of this version of edgechat")
    _, fingerprint, settings, n_tokens, n_bytes, checksum = HEADER.unpack_from(state)
    blob = memoryview(state)[HEADER.size :]
    if fingerprint != bytes.fromhex(key.fingerprint):
        raise ValueError("a saved state of another model")
    if settings != key.hashed_settings:
        raise ValueError("a saved state of other context settings")
    if n_bytes != len(blob) or n_tokens == 0 or checksum != _checksum(n_tokens, blob):
        raise ValueError("a damaged saved state")
    return n_tokens, blob


def _checksum(n_tokens: int, blob: memoryview) -> bytes:
    digest = hashlib.blake2b(n_tokens.to_bytes(8, "little"), digest_size=32)
    digest.update(blob)
    return digest.digest()
