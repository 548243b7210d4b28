"""`python -m hvdrun.agent`: a launcher starts it, writes to its standard input and reads its standard output.

Pythons that are too old for hvdrun must be able to parse this file.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from hvdrun.startup.requirements import find_obstacle


def main() -> int:
    """Serve one job; 0 when the launcher has released the agent."""
    obstacle = find_obstacle(sys.version_info[:3], sys.platform, sys.executable)
    if obstacle:
        sys.stderr.write(obstacle + "\n")
        return 1
    from hvdrun.startup.early import STOPPING, has_foreign_handler, keep_notice, prefer_own_packages  # noqa: PLC0415 - an old Python cannot import it

    keep_notice()
    prefer_own_packages()
    from hvdrun.agent.agent import Ending, serve_pipes  # noqa: PLC0415 - prefer_own_packages() has to be first
    from hvdrun.agent.launcher_timeout import ServerTimeoutError  # noqa: PLC0415 - prefer_own_packages() has to be first
    from hvdrun.errors import HvdrunError  # noqa: PLC0415 - prefer_own_packages() has to be first
    from hvdrun.startup.process import prepare_process  # noqa: PLC0415 - prefer_own_packages() has to be first
    from rendezvous.errors import RendezvousError  # noqa: PLC0415 - prefer_own_packages() has to be first

    prepare_process()
    for number in STOPPING:
        if not has_foreign_handler(number):
            signal.signal(number, signal.SIG_DFL)  # a worker must not inherit what nohup ignores
    orders, output = _take_pipes()
    failed = 1
    try:
        ending = str(asyncio.run(serve_pipes(orders, output)))
    except ServerTimeoutError as error:
        ending, failed = str(error), error.exit_code
    except (RendezvousError, HvdrunError) as error:
        ending = str(error)
    except Exception as error:  # noqa: BLE001 - the launcher prints the sentence, and with -v the traceback
        ending = "this is a bug in hvdrun, please report it (-v prints the traceback): " + repr(error)
    if ending == Ending.RELEASED:
        return 0
    with suppress(OSError):  # the launcher, which reads and prints this, may be gone
        sys.stderr.write(ending + "\n")
    return failed


def _take_pipes() -> "tuple[int, int]":
    """Move the launcher's pipes away from standard input and output.

    At the end of the orders their descriptor is closed, and the next file that is opened gets its number. And what a
    library prints must not get among the messages.
    """
    orders, output = os.dup(0), os.dup(1)  # no child inherits them
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return orders, output


if __name__ == "__main__":
    code = main()
    from hvdrun.startup.process import end_process

    end_process(code)
