"""The image for processors is built, and hvdrun runs in its root: as process 1, as another user, and read-only."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import psutil
import pytest
import yaml

from tests.deploy.samples import PARTIAL, check_sample
from tests.house.sources import ROOT
from tests.lab.requirements import do_without, find_program
from tests.ports import reserve_port

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
BASE = "localhost/base"
FOLDER = "hvd-image-"  # and the number of the process that uses it
# What a container's runtime mounts. The image's own root stays read-only.
ENTER = """set -e
[ -z "$HOST" ] || hostname "$HOST"
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
weights = hvd.allgather(model.weight.detach())
assert weights.shape == (hvd.size(), 4)
assert torch.equal(weights, weights[:1].expand_as(weights)), weights
first = open("/proc/1/cmdline").read().split("\\0")[1]
print("rank", hvd.rank(), "of", hvd.size(), "user", os.getuid(), "process 1", first, flush=True)
"""
COMPOSE = ROOT / "deploy" / "docker" / "compose.yaml"
CONTAINERS = ("1c5f0e9a7b32", "8d2b64f1c0ae", "e47a93d5026c")  # names as Docker makes them
UNSETTLED = re.compile(rf"{PARTIAL.pattern}|waiting for (?!agents)")  # which one starts first is chance


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


def start(image: Path, folder: Path, *command: str, host: str = "") -> subprocess.Popen[str]:
    """Start a container of the image, whose job is in the folder."""
    unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER]
    return subprocess.Popen(
        [*unshare, str(image), str(folder), *command],
        env={**os.environ, "HOST": host},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(container: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a container, and what it has printed."""
    with container:
        try:
            out, err = container.communicate(timeout=120)
        finally:
            container.kill()
    return container.returncode, f"{err}{out}"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a training."""
    tmp_path.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    return tmp_path


@pytest.mark.sample
def test_two_workers_train_in_the_image(image: Path, job: Path, *, rewrite: bool) -> None:
    code, said = finish(start(image, job, "hvdrun", "-np", "2", "python", "train.py"))
    assert code == 0, said
    assert said.count("of 2 user 1000 process 1 /opt/hvdrun/bin/hvdrun\n") == 2
    check_sample("docker", said, rewrite=rewrite)


@pytest.fixture
def place() -> Iterator[str]:
    """Where the launcher of compose listens here."""
    with reserve_port() as port:
        yield f"127.0.0.1:{port}"


@pytest.mark.sample
def test_the_containers_of_compose_train(image: Path, job: Path, place: str, *, rewrite: bool) -> None:
    """The commands of compose.yaml, with one network and one volume; Compose writes the container before each line."""
    volume = job / "volume"
    volume.mkdir()
    os.chown(volume, 1000, 1000)
    words = {"launcher:29400": place, "/token/token": "/mnt/volume/token", "${SCRIPT:-train.py}": "train.py"}
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    commands = {
        name: ["hvdrun", *(words.get(word, word) for word in service["command"])] for name, service in services.items()
    }
    containers = {"launcher-1": start(image, job, *commands["launcher"], host="launcher")}
    for number, host in enumerate(CONTAINERS, start=1):
        containers[f"agent-{number}"] = start(image, job, *commands["agent"], host=host)
    ended = {name: finish(container) for name, container in containers.items()}
    shown = "".join(f"{name:<10} | {line}\n" for name, (_, said) in ended.items() for line in said.splitlines())
    assert {code for code, _ in ended.values()} == {0}, shown
    names = {place: "launcher:29400", "/mnt/volume": "/token"}
    check_sample("compose", shown, names, without=UNSETTLED, rewrite=rewrite)
