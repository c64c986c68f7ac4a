import errno

import pytest

from edgechat import errors
from edgechat.errors import ExitCode, from_exception
from models.errors import BrokenModelFile, UnsupportedTemplate
from quantize.errors import NotEnoughDisk, OutputExists


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.NetworkError("offline"), ExitCode.NETWORK, "offline"),
        (BrokenModelFile("cut short"), ExitCode.BROKEN_MODEL, "cut short"),
        (UnsupportedTemplate("loops"), ExitCode.UNSUPPORTED, "loops"),
        (NotEnoughDisk("3 GB"), ExitCode.RESOURCES, "3 GB"),
        (OutputExists("there"), ExitCode.USAGE, "there"),
        (
            FileNotFoundError(errno.ENOENT, "No such file", "a.gguf"),
            ExitCode.NOT_FOUND,
            "a.gguf: no such file",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "a"), ExitCode.USAGE, "a: permission denied"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a"),
            ExitCode.RESOURCES,
            "a: no space left on device",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.RESOURCES, "no space left on device"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "aa"), ExitCode.USAGE, "aa: file name too long"),
        (OSError(errno.ELOOP, "Too many links", "a"), ExitCode.NOT_FOUND, "a: too many links"),
        (OSError(errno.EIO, "Input/output error"), ExitCode.NOT_FOUND, "input/output error"),
        (OSError(errno.ENXIO, "No such device", "/dev/tty"), ExitCode.NOT_FOUND, "/dev/tty: no such device"),
        (OSError(errno.EROFS, "Read-only file system", "a"), ExitCode.USAGE, "a: read-only file system"),
        (OSError(errno.EINVAL, "Invalid argument", "a"), ExitCode.USAGE, "a: invalid argument"),
        (OSError(errno.EMFILE, "Too many open files"), ExitCode.RESOURCES, "too many open files"),
        (FileNotFoundError("gone"), ExitCode.NOT_FOUND, "gone"),
        (MemoryError(), ExitCode.RESOURCES, "MemoryError"),
    ],
)
def test_what_a_person_can_cause_has_its_code_and_one_line(error, code, text):
    ours = from_exception(error)
    assert ours.code == code
    assert str(ours) == text


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyError("x"), OSError(errno.ECHILD, "No child")])
def test_what_can_only_be_a_bug_has_none(error):
    assert from_exception(error) is None
