"""`python -m hvdrun.agent`: started by a launcher, which speaks on standard input and listens on standard output."""

import asyncio
import os
import sys
from contextlib import suppress

from hvdrun.agent.agent import Ending, serve
from hvdrun.errors import HvdrunError
from rendezvous.errors import RendezvousError


def main() -> int:
    """Serve one job; 0 when the launcher has released the agent."""
    # What a library may print must not get into the frames.
    output = os.dup(1)
    os.dup2(2, 1)
    os.set_inheritable(output, False)  # noqa: FBT003 - os.set_inheritable's signature
    ending: str
    try:
        ending = asyncio.run(serve(0, output))
    except (RendezvousError, HvdrunError) as error:
        ending = str(error)
    if ending is Ending.RELEASED:
        return 0
    with suppress(OSError):  # the launcher, if it is there, puts this into its own sentence about this agent's end
        sys.stderr.write(f"{ending}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
