"""What is said of files that are no GGUF files: in the words of whoever chose the file."""

import gzip
import io
import json
import random
import struct
import sys
import zipfile
from pathlib import Path

import pytest

from models.errors import BrokenModelFile
from models.foreign import foreign
from models.gguf import read_header


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model.gguf", "x")
    return file.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def _noise() -> bytes:
    return random.Random(1).randbytes(5000)


FILES = {
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a picture, not a model: give a GGUF file"),
    "photo": (b"\xff\xd8\xff\xe0\0\x10JFIF", "is a picture, not a model"),
    "document": (b"%PDF-1.7\n", "is a PDF document, not a model"),
    "archive": (_zip(), "is a ZIP archive, not a model"),
    "compressed": (gzip.compress(b"GGUF"), "is a compressed file, not a model"),
    "zeros": (bytes(4096), "holds nothing but zeros, as a download leaves it that was stopped"),
    "noise": (_noise(), "is not a model that runs here: give a GGUF file"),
    "text": ("Grüße, Welt. 你好".encode(), "is a text, not a model"),
    "text, cut within a letter": (("ä" * 400).encode()[:511], "is a text, not a model"),
    "refusal": (b'{"error":"Invalid username or password."}', "is a text, not a model"),
    "page": (b"\n<!DOCTYPE html><html>", "is a web page, not a model"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "`git lfs pull`"),
    "weights": (_safetensors(), "holds a checkpoint's weights, which don't run as they are"),
    "old": (b"tjgg\x03\0\0\0", "is a model in a form that is no longer used: give a GGUF file"),
    "program": (Path(sys.executable).resolve().read_bytes()[:4096], "is a program, not a model"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_called_what_it_is(kind: str, tmp_path: Path) -> None:
    raw, message = FILES[kind]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(BrokenModelFile) as caught:
        read_header(path)
    text = str(caught.value)
    assert text.startswith(f"{path} ")
    assert message in text
    assert text.isprintable()
    assert not any(word in text for word in ("b'", "\\x", "magic", "bytes"))


def test_any_bytes_can_be_told() -> None:
    for seed in range(300):
        noise = random.Random(seed)
        assert foreign(noise.randbytes(noise.randrange(1, 600)))
