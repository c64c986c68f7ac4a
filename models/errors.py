"""What can be wrong with a model. The application maps these to its exit codes.

ModelError
├── BrokenModelFile        the file is damaged, truncated or hostile
└── UnsupportedModel       the file is sound, but not something that we can handle
    └── UnsupportedTemplate    the chat template can't be rendered safely
"""

AGAIN = "download or convert it again"


class ModelError(Exception):
    """A model can't be used. The message is one line: what is wrong, where, and what to do."""


class BrokenModelFile(ModelError):
    """The file is damaged, truncated or hostile: nothing of it may reach native code."""


class UnsupportedModel(ModelError):
    """The file is sound, but of an architecture, type or version that is not supported here."""


class UnsupportedTemplate(UnsupportedModel):
    """The chat template failed to compile or render, or went over its limits of time and output."""


def damaged(path: object, detail: str, where: int | None = None) -> BrokenModelFile:
    """The error of a damaged file: what to do, for whoever chats; behind it what is wrong, for an engineer.

    Args:
        path: the file.
        detail: what is wrong in it, such as "it lacks llama.block_count".
        where: the byte at which that is.
    """
    return _broken(path, "is damaged", detail, where)


def cut_off(path: object, detail: str, where: int | None = None) -> BrokenModelFile:
    """The same of a file that is not whole."""
    return _broken(path, "is cut off", detail, where)


def _broken(path: object, what: str, detail: str, where: int | None) -> BrokenModelFile:
    place = "" if where is None else f", at byte {where}"
    return BrokenModelFile(f"{path} {what}: {AGAIN} ({detail}{place})")
