"""`python -m hvdrun.agent`: started by a launcher, which speaks on standard input and listens on standard output."""

import asyncio
import os
import sys

from hvdrun.agent.agent import Ending, serve


def main() -> int:
    """Serve one job; 0 when the launcher has released the agent."""
    # What a library may print must not get into the frames.
    output = os.dup(1)
    os.dup2(2, 1)
    os.set_inheritable(output, False)  # noqa: FBT003 - os.set_inheritable's signature
    return 0 if asyncio.run(serve(0, output)) is Ending.RELEASED else 1


if __name__ == "__main__":
    sys.exit(main())
