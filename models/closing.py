"""What is closed at the end of a `with`."""

from types import TracebackType
from typing import Self


class Closing:
    """Files that are open until `close`."""

    def close(self) -> None:
        """Close the files."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
