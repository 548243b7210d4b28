"""The image for processors is built, and hvdrun runs in its root: as process 1, as another user, and read-only."""

import faulthandler
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import psutil
import pytest

from tests.house.sources import ROOT
from tests.lab.requirements import do_without, find_program

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
BASE = "localhost/base"
FOLDER = "hvd-image-"  # and the number of the process that uses it
# What a container's runtime mounts. The image's own root stays read-only.
ENTER = """set -e
mount --rbind /dev "$0/dev"
for place in dev/shm tmp; do mount -t tmpfs tmpfs "$0/$place"; done
mount -t proc proc "$0/proc"
mount --bind "$1" "$0/mnt"; shift
exec chroot --userspec=1000:1000 "$0" env -i -C /mnt PATH=/opt/hvdrun/bin:/usr/bin:/bin "$@"
"""
TRAIN = """
import os, sys
import torch
import worker_runtime.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
one, other = hvd.allgather(model.weight.detach())
first = open("/proc/1/cmdline").read().split("\\0")[1]
print("of", hvd.size(), "user", os.getuid(), "alike", torch.equal(one, other), "process 1", first, flush=True)
"""


def run(*command: str | Path, limit_seconds: float = 600) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_seconds, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def sweep() -> None:
    """Remove the folders of runs that were killed."""
    for path in Path(gettempdir()).glob(f"{FOLDER}[0-9]*-*"):
        if not psutil.pid_exists(int(path.name.split("-")[2])):
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """The root of the image, with a bootstrapped Debian as its base, and packages that are not fetched in the build."""
    try:
        debootstrap, podman = find_program("debootstrap"), find_program("podman")
    except FileNotFoundError as error:
        do_without(f"{error}: on Debian, apt-get install debootstrap podman")
    if os.geteuid() != 0:
        do_without("a build of an image needs root")
    faulthandler.cancel_dump_traceback_later()  # a build takes longer; the limit of this file's tests holds
    sweep()
    with TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-") as folder:
        root, wheels, archive = (Path(folder, name) for name in ("root", "wheels", "base.tar"))
        run(debootstrap, "--variant=minbase", "--include=python3,python3-venv", "bookworm", root)
        run("tar", "-C", root, "--exclude=./var/cache", "-cf", archive, ".")
        version = run("chroot", root, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        if version != f"{sys.version_info.major}.{sys.version_info.minor}":
            do_without(f"the packages are fetched for this Python, and the image's base has Python {version}")
        pip = (sys.executable, "-m", "pip", "download", "-q", "-d", wheels, "-c", "constraints.txt")
        run(*pip, ".[torch]", "hatchling")
        store = (podman, "--root", f"{folder}/store", "--runroot", f"{folder}/run", "--cgroup-manager", "cgroupfs")
        run(*store, "import", archive, BASE)
        arguments = {"BASE": BASE, "PIP_OPTIONS": "--no-index --no-compile --find-links /wheels"}
        given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        build = (*store, "build", "--quiet", "--isolation", "chroot", "--layers=false", "-v", f"{wheels}:/wheels:ro")
        built = run(*build, *given, "-f", "deploy/docker/Dockerfile", ".")
        try:
            yield Path(run(*store, "image", "mount", built))
        finally:
            run(*store, "image", "unmount", "--all")


def test_two_workers_train_in_the_image(image: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, str(image), str(tmp_path)]
    command = ["hvdrun", "--no-prefix", "-np", "2", "python", "train.py"]
    done = subprocess.run([*unshare, *command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["of 2 user 1000 alike True process 1 /opt/hvdrun/bin/hvdrun"] * 2
