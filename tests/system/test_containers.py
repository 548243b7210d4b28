"""Jobs in containers that lack what a login has: an account, a home, a name, a network, room to write."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.system.opening import open_ways

pytestmark = [pytest.mark.nightly]

BIN = Path(sys.executable).parent
TRAINING = """
import torch, worker_runtime.torch as hvd
from rendezvous.core.model import LOOPBACK
hvd.init()
print("sum", hvd.allreduce(torch.ones(3_000_000), op=hvd.Sum)[0].item(), flush=True)
"""
# What is done before the command, in namespaces of its own.
UNKNOWN_USER = "user='setpriv --reuid 54321 --regid 54321 --clear-groups env -u USER -u LOGNAME'"
HOMELESS = "export HOME=/nonexistent"
READ_ONLY = "mount -o remount,bind,ro /; for place in /tmp /var/tmp; do mount -o bind,ro $place $place; done"
SMALL_MEMORY = "mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm"
LOOPBACK = "ip link set lo up"
NAMELESS = "hostname no-such-host; mount --bind /dev/null /etc/hosts"
CONTAINERS = {
    "an unknown user id": [UNKNOWN_USER],
    "an unknown user id without HOME": [UNKNOWN_USER, "unset HOME"],
    "HOME not writable": [HOMELESS],
    "a read-only root": [SMALL_MEMORY, READ_ONLY],
    "64 MB of shared memory": [SMALL_MEMORY],
    "loopback only": [LOOPBACK],
    "a host name that does not resolve": [LOOPBACK, NAMELESS],
    "all of them": [LOOPBACK, NAMELESS, SMALL_MEMORY, UNKNOWN_USER, HOMELESS, READ_ONLY],
}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and unshare")
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_training_runs_in(container: str, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    setup = CONTAINERS[container]
    network = ["--net"] if LOOPBACK in setup else []
    lines = [
        "set -e",
        "mount -t tmpfs -o mode=755 tmpfs /mnt",
        *open_ways(Path("/mnt"), Path(sys.base_prefix).resolve(), ROOT),
        f"mkdir /mnt/training; mount --bind {folder} /mnt/training; cd /mnt/training",
        *setup,
        f"exec $user {BIN}/hvdrun -np 2 {BIN}/python train.py",
    ]
    run = subprocess.run(
        ["unshare", "--mount", "--uts", *network, "sh", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (run.returncode, sorted(run.stdout.splitlines()), run.stderr) == (0, ["[0] sum 2.0", "[1] sum 2.0"], "")
