"""A lab for a developer's hands: `python -m tests.lab up 3` builds it, says how to enter its hosts, and waits."""

import argparse
import contextlib
import shlex
import sys

from tests.lab.host import Host, enter
from tests.lab.lab import Lab
from tests.lab.requirements import find_missing


def describe(host: Host) -> str:
    """A host's addresses, and the command that gives a shell there."""
    addresses = [a for interface in host.network.joined() for a in interface.addresses.values()]
    variables = [f"{name}={value}" for name, value in host.environment().items()]
    shell = [*enter(host.pid, "mount", "uts", "ipc", "net", "pid"), "env", f"--chdir={host.home}", *variables, "bash"]
    return f"{host.name}: {' '.join(addresses)}\n  {shlex.join(shell)}"


def main() -> int:
    """Build a lab, and remove it at Ctrl-C or the end of the input; 1 when it cannot be built here."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    up = parser.add_subparsers(dest="action", required=True, metavar="up").add_parser("up", help="build a lab")
    up.add_argument("hosts", type=int, nargs="?", default=2, help="how many, the launcher not counted (default: 2)")
    arguments = parser.parse_args()
    missing = find_missing()
    if missing is not None:
        sys.stderr.write(f"{missing}\n")
        return 1
    with Lab(arguments.hosts) as lab:
        sys.stdout.write("\n".join(map(describe, (*lab, lab.launcher))))
        sys.stdout.write(
            f"\nAll of them see {lab.shared}, and can ssh to each other by name. Ctrl-C or Ctrl-D removes the lab.\n"
        )
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
