"""Models small enough to be sent around in tests."""

from tests.oracles.raw_gguf import I32, U16, File, tiny_llama


def gguf(file: File | None = None) -> bytes:
    """A model's file, some 330 kB."""
    file = tiny_llama() if file is None else file
    return file.header() + file.data()


def split_gguf() -> tuple[bytes, bytes]:
    """A model in two files."""
    whole = tiny_llama()
    half = len(whole.tensors) // 2
    parts = []
    for number, tensors in enumerate((whole.tensors[:half], whole.tensors[half:])):
        part = tiny_llama() if number == 0 else File()
        part.tensors = tensors
        part.put("split.no", U16, number).put("split.count", U16, 2)
        part.put("split.tensors.count", I32, len(whole.tensors))
        parts.append(part.header() + part.data())
    return parts[0], parts[1]
