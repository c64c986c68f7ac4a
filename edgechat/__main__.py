"""The command line: what `edgechat` and `python -m edgechat` run."""

import io
import os
import signal
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    # Until the command runs there is nothing to clean up: Ctrl-C ends the process at once, and quietly.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    open_streams()
    print_what_can_be()
    from edgechat.cli.app import run

    run()


def leave(number: int, frame: object) -> None:
    """End the process, as Ctrl-C asks: where nothing is to be cleaned up."""
    os._exit(INTERRUPTED)


def open_streams() -> None:
    """Give a process that was started without a standard stream (`>&-`) one that leads nowhere.

    Else the next file that is opened would take its place, and be written to. What is printed on a closed
    standard output can't be written, as before: nobody is told that it was.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:  # the lowest that is free, so it becomes this one
            os.set_inheritable(os.open(os.devnull, mode), True)
    for name, kind in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = ("stdin", "stdout", "stderr").index(name)
            setattr(sys, name, os.fdopen(number, kind, encoding="utf-8", closefd=False))


def print_what_can_be() -> None:
    """A letter that the terminal's encoding lacks, or a file's name that is no text, is printed as "?"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
