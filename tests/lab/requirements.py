"""Whether a lab can be built on this machine, and what becomes of a test where it cannot."""

import functools
import os
import shutil
import subprocess
from typing import NoReturn

import pytest

from tests.waiting import LIMIT_SECONDS

REQUIRED = "HVDRUN_REQUIRE_LAB"
_FOLDERS = ("/usr/sbin", "/sbin")
# What a lab calls by name -> the package of Debian that has it.
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
# What a lab asks of the kernel, tried in namespaces that vanish immediately.
_TRIAL = """
set -e
mount --make-rprivate /
mount -t tmpfs lab /run
ip link add net0 type bridge
ip link add port0 type veth peer name eth0
echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6
nft add table netdev lab
nft add chain netdev lab eth0 '{ type filter hook ingress device eth0 priority 0; policy accept; }'
tc qdisc add dev port0 root tbf rate 1mbit burst 4kb latency 100ms
"""


def find_program(name: str) -> str:
    """Where a program is, those of the administrator included, which a user's PATH may leave out.

    Raises FileNotFoundError.
    """
    found = _look_for(name)
    if found is None:
        raise FileNotFoundError(f"there is no program {name} on PATH or among the administrator's")
    return found


def _look_for(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS]))


@functools.cache
def find_missing() -> str | None:
    """Why no lab can be built here, as one sentence; None when one can."""
    absent = [name for name in _PACKAGES if _look_for(name) is None]
    needs = ([] if os.geteuid() == 0 else ["root"]) + absent
    if needs:
        packages = " ".join(sorted({_PACKAGES[name] for name in absent}))
        remedy = f"on Debian, apt-get install {packages}" if absent else "run the tests as root"
        return f"a lab of hosts needs {', '.join(needs)}, which are missing here: {remedy}"
    command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c", _TRIAL]
    trial = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    if trial.returncode != 0:
        return f"a lab of hosts needs namespaces, bridges and nftables, which are refused here: {trial.stderr.strip()}"
    return None


def require_lab() -> None:
    """Skip the test that calls this where no lab can be built; fail it when one is demanded."""
    missing = find_missing()
    if missing is not None:
        do_without(missing)


def do_without(missing: str) -> NoReturn:
    """Skip the test that calls this, since this is missing; fail it when a lab is demanded."""
    if os.environ.get(REQUIRED, "0") not in {"", "0"}:
        pytest.fail(f"{missing}; {REQUIRED} forbids to skip this")
    pytest.skip(missing)
