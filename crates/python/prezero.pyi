"""Take ready huge pages from the prezero daemon."""

from types import TracebackType
from typing import Any, final

__all__ = ["Error", "Loan", "NoDaemon", "Refused", "__version__", "lend", "status"]

__version__: str

class Error(OSError):
    """What went wrong between this program and the daemon; nothing was lent by it."""

class NoDaemon(Error):
    """No daemon listens at the socket."""

class Refused(Error):
    """The daemon refused: its reason is `strerror`."""

@final
class Loan:
    """Borrowed memory: a writable buffer of bytes, mapped shared at one address."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""
    @property
    def ready_bytes(self) -> int:
        """So many of them were zero when it was lent; the kernel zeroes the rest on touch."""
    @property
    def page_size(self) -> int:
        """Bytes of one of its pages."""
    @property
    def kept(self) -> bool:
        """Whether the content is what its owner left before; zero otherwise."""
    @property
    def id(self) -> int:
        """The lease's number in `prezero status`."""
    @property
    def address(self) -> int:
        """Where it is mapped, as to register it with a device. Raises ValueError once it is closed."""
    @property
    def closed(self) -> bool:
        """Whether it was given back."""
    def close(self) -> None:
        """Gives it back. Raises BufferError while a view of it lives; a second time does nothing."""
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def __enter__(self) -> Loan: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def lend(
    size: int | str,
    *,
    page_size: int | str | None = None,
    node: int | None = None,
    owner: str | None = None,
    keep: float | None = None,
    wait: float | None = None,
    socket: str | None = None,
) -> Loan:
    """Borrows memory and maps it.

    `size` is whole pages, in bytes or as in "8G"; `page_size` ("2M", "1G") and `node` are any if they
    are not given. `owner` is a name under which the same user finds the content again for `keep` seconds
    after the loan has ended. `wait` is how many seconds to wait until all of it is ready; without, or
    after them, what is not comes as a hole, which the kernel zeroes on touch. Ctrl-C, as any signal
    whose handler raises, ends the wait.

    `socket` is where the daemon listens: PREZERO_SOCKET or /run/prezero/io.prezero if it is not given. Other
    threads run meanwhile. Raises ValueError for a size that is none and for a time that is negative or
    longer than 1e9 seconds, NoDaemon, Refused, or Error.
    """

def status(*, socket: str | None = None) -> dict[str, Any]:
    """Everything there is to see, by the names that `prezero status --json` has. Raises as `lend` does."""
