"""The error that the command line turns into one clear line."""


class FlytuneError(Exception):
    """A fault that the user can act on.

    The message is lower case, has no full stop and ends with the value at fault;
    `hint` says what to do next, where there is something to do.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
