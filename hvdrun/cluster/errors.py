"""The errors of `hvdrun.run()` and `hvdrun.Cluster`, beside those that the functions raise."""

from typing import Any

from hvdrun.errors import HvdrunError, LaunchError


class JobRefusedError(LaunchError):
    """The job could not be launched.

    Cause: hvdrun could not launch the job of `hvdrun.run()` or `hvdrun.Cluster`.
    Remedy: See the lines of the message: they are those of the command line.

    outcome: what `--outcome` writes, as a dict; None where it is not known.
    """

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.outcome: dict[str, Any] | None = None


class JobEndedError(HvdrunError, RuntimeError):
    """The job ended before its functions returned, and no function raised an exception.

    Message: rank RANK (HOST:SLOT) was killed by SIGKILL (signal 9). Its last lines:
    Cause: A worker was killed or exited while its function ran.
    Remedy: See the last lines of that worker in the message.

    Args:
        reason: why the job ended, a sentence.
        rank, returncode, last_lines: those of the worker that failed first, if one did: a
            negative returncode is a signal, and last_lines are the end of its output.

    outcome: what `--outcome` writes, as a dict; None where it is not known.
    """

    def __init__(
        self, reason: str, rank: int | None = None, returncode: int | None = None, last_lines: tuple[str, ...] = ()
    ) -> None:
        sentence = f"{reason.rstrip('.')}."
        if last_lines:
            sentence = "\n  ".join([f"{sentence} Its last lines:", *last_lines])
        super().__init__(sentence)
        self.reason = reason
        self.rank = rank
        self.returncode = returncode
        self.last_lines = last_lines
        self.outcome: dict[str, Any] | None = None


class RemoteError(RuntimeError):
    """An exception of a function that cannot be raised here: SystemExit, or one that cannot be pickled.

    Cause: The function has raised an exception that cannot be pickled, or SystemExit.
    Remedy: See the traceback of the worker below the error.

    Args:
        rank: the rank of the worker.
        kind: the name of the exception's class.
        text: its message; or "".
    """

    def __init__(self, rank: int, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.rank = rank
        self.kind = kind


class RemoteTraceback(Exception):  # noqa: N818 - the cause of an error, never raised itself
    """Shows the traceback of an exception on its worker."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\nrank {self.rank}:\n{self.text}"""'


class UnsendableError(TypeError, ValueError):
    """A function, an argument or a result cannot be pickled.

    Message: rank RANK: REASON; return numbers, arrays, text, or another object that can be pickled.
    Cause: The result of the function contains a lock, an open file or the like.
    Remedy: Return numbers, arrays or text.
    """


class UnknownKeywordError(TypeError):
    """No option has this keyword.

    Cause: The keyword belongs to no option of hvdrun.
    Remedy: `hvdrun --help all` lists the options: `--min-np` is `min_np`.
    """

    def __init__(self, name: str, remedy: str | None = None) -> None:
        super().__init__(f"there is no keyword {name!r}: {remedy or 'hvdrun --help all lists them.'}")
        self.name = name
