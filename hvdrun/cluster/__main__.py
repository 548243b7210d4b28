"""`python -m hvdrun.cluster DESCRIPTOR PID WATCHED [options] COMMAND`: the launcher of a job that runs functions.

It is a child of the program that calls `hvdrun.run()`: process PID, which has the other end of the descriptor. The
job's output goes to standard output and error, its messages to the descriptor. WATCHED is 1 if a person reads what the
program prints, else 0.
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hvdrun.startup.early import STOPPING, has_foreign_handler, prefer_own_packages

if TYPE_CHECKING:
    from hvdrun.tasks.messages import Refused


def main(descriptor: int, program: int, words: list[str], *, is_watched: bool) -> int:
    """Run the job of this command line; return the exit code."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    for number in STOPPING:
        if not has_foreign_handler(number):
            signal.signal(number, signal.SIG_DFL)  # the program may ignore them
    prefer_own_packages()
    from hvdrun.startup.process import prepare_process  # noqa: PLC0415 - from here on imports come from hvdrun

    prepare_process()  # from here on a Ctrl-C that has come ends this process
    from hvdrun.cli.messages import INTERRUPTED, report_internal_error  # noqa: PLC0415 - imports are hvdrun's from here
    from hvdrun.cli.program import asks_for_details, read_spec  # noqa: PLC0415 - from here on imports come from hvdrun
    from hvdrun.cli.run import run  # noqa: PLC0415 - from here on imports come from hvdrun
    from hvdrun.errors import CANNOT_LAUNCH, HvdrunError  # noqa: PLC0415 - from here on imports come from hvdrun
    from hvdrun.job import launch  # noqa: PLC0415 - from here on imports come from hvdrun
    from hvdrun.tasks.dispatcher import Dispatcher  # noqa: PLC0415 - from here on imports come from hvdrun
    from hvdrun.tasks.messages import Body, Refused  # noqa: PLC0415 - from here on imports come from hvdrun
    from rendezvous.core.outcome import SIGNAL_OFFSET  # noqa: PLC0415 - from here on imports come from hvdrun

    dispatcher = Dispatcher(connection, watch(program), is_watched=is_watched)
    # The program has ended.
    if os.getppid() != program:
        return SIGNAL_OFFSET + signal.SIGTERM
    try:
        return run(read_spec(words), partial(launch, dispatcher=dispatcher))
    except HvdrunError as error:
        body = None
        with suppress(OSError):  # no room; the message is worth more
            body = Body.of_bytes(error.report) if error.report else None
        send_refusal(connection, Refused(error.lines, error.exit_code, body))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a bug of hvdrun
        sentence = f"this is a bug in hvdrun, please report it: {type(error).__name__}: {error}"
        send_refusal(connection, Refused((sentence,), CANNOT_LAUNCH))
        return report_internal_error(error, with_traceback=asks_for_details(words), with_time=False)


def send_refusal(connection: socket.socket, refused: "Refused") -> None:
    """Send the program why there is no job, unless it has ended."""
    from hvdrun.tasks.messages import send  # noqa: PLC0415 - imports come from hvdrun only after the early part

    with suppress(OSError):  # the program has ended
        send(connection, refused)


def watch(program: int) -> int | None:
    """A descriptor that becomes readable when the program ends; None on an old Linux, which has no such descriptor."""
    try:
        return os.pidfd_open(program)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:], is_watched=sys.argv[3] == "1"))
