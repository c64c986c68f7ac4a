"""What can go wrong while quantizing. The application maps these to its exit codes.

QuantizeError
├── BadRequest         options that contradict each other or the source
│   └── BrokenWorkspace    what a stopped run left can't be gone on with
├── SourceNotFound     no checkpoint at that path
├── OutputExists       refused without --force
├── NotEnoughDisk
├── NotEnoughMemory
├── NoSuchDevice       this machine, or its torch, has no such GPU
└── NativeFailure      llama.cpp refused or crashed
"""


def to_install(extra: str) -> str:
    """What a person does who has edgechat without what one of its extras brings."""
    return f"`make setup-all`, or `pip install '.[{extra}]'`, in edgechat's folder"


class QuantizeError(Exception):
    """A quantization can't be done. The message is one line: what is wrong, where, and what to do."""


class BadRequest(QuantizeError):
    """The options contradict each other, or don't fit the source."""


class BrokenWorkspace(BadRequest):
    """What a stopped run left is damaged: it can't be gone on with."""


class SourceNotFound(QuantizeError):
    """There is no checkpoint at that path."""


class OutputExists(QuantizeError):
    """The output is there already, and replacing it was not asked for."""


class NotEnoughDisk(QuantizeError):
    """The result would not fit on the disk."""


class NotEnoughMemory(QuantizeError):
    """The run would not fit in memory."""


class NoSuchDevice(QuantizeError):
    """This machine, or its torch, has no such GPU."""


class NativeFailure(QuantizeError):
    """llama.cpp refused the job, or its process crashed."""
