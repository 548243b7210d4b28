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
hvd.init()
print("sum", hvd.allreduce(torch.ones(3_000_000), op=hvd.Sum)[0].item(), flush=True)
"""
# Shell lines that run before the command, in new namespaces: each takes something away from the container.
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
RESTARTED = """
import os, signal
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
print("sum", total.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and unshare"
)


def run_in(container: str, tmp_path: Path, script: str, options: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script by two workers in such a container."""
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "train.py").write_text(script)
    setup = CONTAINERS[container]
    network = ["--net"] if LOOPBACK in setup else []
    lines = [
        "set -e",
        "mount -t tmpfs -o mode=755 tmpfs /mnt",
        *open_ways(Path("/mnt"), Path(sys.base_prefix).resolve(), ROOT),
        f"mkdir /mnt/training; mount --bind {folder} /mnt/training; cd /mnt/training",
        *setup,
        f"exec $user {BIN}/hvdrun -np 2 {options} {BIN}/python train.py",
    ]
    return subprocess.run(
        ["unshare", "--mount", "--uts", *network, "sh", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@needs_namespaces
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_training_runs_in_a_bare_container(container: str, tmp_path: Path) -> None:
    run = run_in(container, tmp_path, TRAINING)
    assert (run.returncode, sorted(run.stdout.splitlines()), run.stderr) == (0, ["[0] sum 2.0", "[1] sum 2.0"], "")


@needs_namespaces
def test_all_workers_are_started_again_in_a_container(tmp_path: Path) -> None:
    run = run_in("all of them", tmp_path, RESTARTED, "--max-restarts 1")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("sum 4.0") == 2
    assert "all 2 workers are started again (0 of 1 restarts left)" in run.stderr
