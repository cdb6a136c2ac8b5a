"""The error that the command line turns into one clear line."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath


class FlytuneError(Exception):
    """A fault that the user can act on.

    The message is lower case, has no full stop and ends with the value at fault;
    `hint` says what to do next, where there is something to do. `code` is the fault's
    stable number, such as "FT201", where it has one.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code

    @property
    def line(self) -> str:
        """The message with its code, as it is printed."""
        return f"{self} ({self.code})" if self.code else str(self)


@contextmanager
def about(path: str | PathLike[str], hint: str | None = None) -> Iterator[None]:
    """Name what is read in the errors of the block that do not.

    Args:
        path: A file; a bundle's may have a pin.
        hint: What to do, in place of what the error says.

    Raises:
        FlytuneError: as the block.
    """
    try:
        yield
    except FlytuneError as error:
        name = fspath(path).partition("@sha256:")[0]
        if name not in str(error):
            error.args = (f"{error}: {name}",)
        error.hint = hint or error.hint
        raise
