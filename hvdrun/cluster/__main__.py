"""`python -m hvdrun.cluster DESCRIPTOR PID [options] COMMAND`: the launcher of a job whose workers run functions.

It is a child of the program that calls `hvdrun.run()`: process PID, which holds the other end of the descriptor. What
the job prints goes to standard output and error as always; what becomes of it is said on the descriptor.
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hvdrun.startup.early import prefer_own_packages

if TYPE_CHECKING:
    from hvdrun.tasks.messages import Refused


def main(descriptor: int, program: int, words: list[str]) -> int:
    """Run the job that the words ask for; the exit code."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    prefer_own_packages()
    from hvdrun.startup.process import prepare_process  # noqa: PLC0415 - only now what it imports is surely ours

    prepare_process()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # what the program ignores concerns the program
    from hvdrun.cli import program as cli  # noqa: PLC0415 - the same
    from hvdrun.errors import CANNOT_LAUNCH, HvdrunError  # noqa: PLC0415 - the same
    from hvdrun.job import launch  # noqa: PLC0415 - the same
    from hvdrun.tasks.desk import Desk  # noqa: PLC0415 - the same
    from hvdrun.tasks.messages import Refused  # noqa: PLC0415 - the same
    from rendezvous.core.outcome import SIGNAL_OFFSET  # noqa: PLC0415 - the same

    desk = Desk(connection, watch(program))
    if os.getppid() != program:  # it has ended, and nobody wants the job
        return SIGNAL_OFFSET + signal.SIGTERM
    try:
        return cli.run(cli.read_spec(words), partial(launch, desk=desk))
    except HvdrunError as error:
        tell(connection, Refused(error.lines, error.exit_code))
        return error.exit_code
    except KeyboardInterrupt:
        return cli.INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a fault of ours
        sentence = f"this is a fault of hvdrun's own, please report it: {type(error).__name__}: {error}"
        tell(connection, Refused((sentence,), CANNOT_LAUNCH))
        return cli.report_internal_error(error, with_traceback=cli.asks_for("verbose", words), with_time=False)


def tell(connection: socket.socket, refused: "Refused") -> None:
    """Say why there is no job, if the program is there."""
    from hvdrun.tasks.messages import send  # noqa: PLC0415 - see above

    with suppress(OSError):
        send(connection, refused)


def watch(program: int) -> int | None:
    """A descriptor that becomes readable when the program ends; None where there can be none, as on an old Linux."""
    try:
        return os.pidfd_open(program)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
