"""What a file is that is not a GGUF file, by its first bytes: in the words of whoever chose it."""

PREFIXES = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"\xca\xfe\xba\xbe", "a program"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a compressed file"),
    (b"BZh", "a compressed file"),
    (b"\xfd7zXZ", "a compressed file"),
    (b"\x28\xb5\x2f\xfd", "a compressed file"),
    (b"7z\xbc\xaf", "a compressed file"),
    (b"SQLite format 3", "a database"),
)
PAGE = (b"<!doctype", b"<html", b"<?xml")
OLD = (b"lmgg", b"fmgg", b"tjgg")
"""What llama.cpp's files began with before they were GGUF."""
POINTER = b"version https://git-lfs"
MAX_SAFETENSORS_HEADER = 2**32
GIVE = "give a GGUF file"


def foreign(head: bytes) -> str:
    """What the file is, and what to do: "is a picture, not a model: give a GGUF file".

    Args:
        head: its first bytes, some hundreds where it has them, at least one.
    """
    if found := _not_what_was_wanted(head):
        return found
    kind = next((kind for prefix, kind in PREFIXES if head.startswith(prefix)), "")
    if kind or _is_text(head):
        return f"is {kind or 'a text'}, not a model: {GIVE}"
    return f"is not a model that runs here: {GIVE}, which begins with these four letters"


def _not_what_was_wanted(head: bytes) -> str:
    """What a download left in a model's place, or a model in another form; "" for neither."""
    if not head.strip(b"\0"):
        return "holds nothing but zeros, as a download leaves it that was stopped: download it again"
    if head.startswith(POINTER):
        return "is a pointer that Git left in a model's place: get the model with `git lfs pull`"
    if head.lstrip().lower().startswith(PAGE):
        return (
            "is a web page, not a model: its address leads to a page about the model, look for the file there"
        )
    if head.startswith(OLD):
        return f"is a model in a form that is no longer used: {GIVE}"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < MAX_SAFETENSORS_HEADER:
        return (
            "holds a checkpoint's weights, which don't run as they are: give `edgechat quantize` the folder "
            "that they came in"
        )
    return ""


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.end < len(head):  # else a letter is cut in two
            return False
        text = head[: error.start].decode()
    return bool(text) and all(letter.isprintable() or letter.isspace() for letter in text)
