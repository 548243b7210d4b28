"""A lab for a developer's hands: `python -m tests.lab up 3` builds it, says how to enter its hosts, and waits."""

import argparse
import contextlib
import shlex
import sys
import time

from tests.lab.host import Host, enter
from tests.lab.lab import Lab
from tests.lab.plan import LAUNCHER, Family, HostPlan
from tests.lab.requirements import find_missing


def read_arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    up = parser.add_subparsers(dest="action", required=True, metavar="up").add_parser("up", help="build a lab")
    up.add_argument("hosts", type=int, nargs="?", default=2, help="how many, the launcher not counted (default: 2)")
    up.add_argument("--networks", type=int, default=1, help="how many each host is on, as eth0, eth1 and so on")
    up.add_argument("--decoy", action="append", default=[], metavar="NAME", help="an interface that leads nowhere")
    up.add_argument("--ipv6-only", action="store_true", help="no IPv4 on any host")
    up.add_argument("--closed-launcher", action="store_true", help="nobody can open a connection to the launcher")
    return parser.parse_args()


def describe(host: Host) -> str:
    """A host's addresses, and the command that gives a shell there."""
    addresses = [a for interface in host.network.joined() for a in interface.addresses.values()]
    variables = [f"{name}={value}" for name, value in host.environment().items()]
    shell = [*enter(host.pid, "mount", "uts", "ipc", "net", "pid"), "env", f"--chdir={host.home}", *variables, "bash"]
    return f"{host.name}: {' '.join(addresses)}\n  {shlex.join(shell)}"


def main() -> int:
    """Build a lab, and remove it at Ctrl-C or the end of the input; 1 when it cannot be built here."""
    arguments = read_arguments()
    missing = find_missing()
    if missing is not None:
        sys.stderr.write(f"{missing}\n")
        return 1
    devices = tuple(f"eth{n}" for n in range(arguments.networks))
    families = (Family.IPV6,) if arguments.ipv6_only else tuple(Family)
    decoys = tuple(arguments.decoy)
    plans = [HostPlan(f"host{n}", devices, families, decoys) for n in range(1, arguments.hosts + 1)]
    launcher = HostPlan(LAUNCHER, devices, families, decoys, is_closed=arguments.closed_launcher, sshd=None)
    began = time.monotonic()
    with Lab(plans, launcher=launcher) as lab:
        sys.stdout.write("\n".join(map(describe, (*lab, lab.launcher))))
        sys.stdout.write(
            f"\nAll of them see {lab.shared}, and can ssh to each other by name; built in"
            f" {time.monotonic() - began:.2f} s. Ctrl-C or Ctrl-D removes the lab.\n"
        )
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
