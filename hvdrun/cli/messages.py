"""What hvdrun itself prints outside of a job: pages, errors, and how they end it."""

import os
import signal
import sys
import traceback
from contextlib import suppress
from datetime import datetime

from hvdrun.errors import CANNOT_LAUNCH, HvdrunError, OutputLostError

OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as shells report a program whose reader has closed the pipe
INTERRUPTED = 130
BUG = "this is a bug in hvdrun"


def print_text(text: str) -> int:
    """Print a page on standard output and return the exit code.

    Raises:
        OutputLostError: it cannot be written.
    """
    try:
        # None if hvdrun was started with it closed, or if a program has put a StringIO in its place
        if (encoding := getattr(sys.stdout, "encoding", None)) is not None:
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        print(text, flush=True)  # noqa: T201 - the command line prints
    except BrokenPipeError:
        discard_stdout()
        return OUTPUT_CLOSED
    except OSError as error:
        discard_stdout()
        raise OutputLostError(error.strerror or str(error)) from error
    return 0


def discard_stdout() -> None:
    """Discard buffered output, or Python would report at its end that it cannot write it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def end_by_interrupt() -> int:
    """Die of SIGINT, so that a shell ends its loop, too; return the exit code if it does not kill, as in process 1."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return INTERRUPTED


def report(error: BaseException, *, with_traceback: bool, with_time: bool) -> int:
    """Report an error that has ended hvdrun, and return the exit code."""
    if isinstance(error, HvdrunError):
        return report_error(error, with_time=with_time)
    return report_internal_error(error, with_traceback=with_traceback, with_time=with_time)


def report_error(error: HvdrunError, *, with_time: bool) -> int:
    """Print an error, unless it is printed already, and return the exit code."""
    if not error.is_told:
        print_error(*error.lines, with_time=with_time)
    return error.exit_code


def print_error(sentence: str, *details: str, with_time: bool) -> None:
    """Print an error on stderr: a line, and another one for each detail."""
    head, *rest = (" ".join(text.splitlines()) for text in (sentence, *details))
    lines = [f"hvdrun: {head}", *(f"  {text}" for text in rest)]
    if with_time:
        from hvdrun.console.marks import render_time  # noqa: PLC0415 - few ask for it

        lines = [f"{render_time(datetime.now().astimezone())}{line}" for line in lines]
    # None when hvdrun was started with it closed.
    if sys.stderr is not None:
        with suppress(OSError):  # nobody reads it; the exit code is the report
            print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201 - the command line prints


def print_record(record: str) -> bool:
    """Print a record of --log-format on stderr; whether it is printed."""
    with suppress(OSError):  # nobody reads it
        print(record, end="", file=sys.stderr, flush=True)  # noqa: T201 - the command line prints
        return sys.stderr is not None
    return False


def report_internal_error(error: BaseException, *, with_traceback: bool, with_time: bool) -> int:
    """Report a bug of hvdrun and return the exit code."""
    if with_traceback and sys.stderr is not None:
        with suppress(OSError):  # nobody reads it
            traceback.print_exception(error)
    remedy = (
        "please report it with this traceback" if with_traceback else "please run it with -v and report what it prints"
    )
    print_error(f"{BUG}, {remedy}: {type(error).__name__}: {error}", with_time=with_time)
    return CANNOT_LAUNCH
