"""Jobs under the Pythons of newer Debians, each in a folder of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.house.sources import ROOT
from tests.lab.requirements import do_without, find_program
from tests.system.scripts import JOIN

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
RELEASES = {"trixie": "3.13", "forky": "3.14"}
SCRIPTS = Path("/usr/share/debootstrap")
# All that is started there ends with the command.
ENTER = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
FAILS = f"""{JOIN}
print("one of", join().assignment.size, *sys.version_info[:2], flush=True)
sys.exit(3 if os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture(scope="module", params=RELEASES)
def debian(request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    """The root of another Debian, with hvdrun and what it needs in /opt/hvdrun, and the version of its Python."""
    release, version = request.param, RELEASES[request.param]
    try:
        debootstrap = find_program("debootstrap")
    except FileNotFoundError:
        do_without("another Debian needs debootstrap, which is missing here: on Debian, apt-get install debootstrap")
    if os.geteuid() != 0:
        do_without("another Debian needs root")
    with TemporaryDirectory(prefix="hvd-debian-") as folder:
        root = Path(folder, "root")
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        environment = {**os.environ, "DEBOOTSTRAP_DIR": str(teach(release, Path(folder, "debootstrap")))}
        make = (debootstrap, "--variant=minbase", "--include=python3", release, root)
        fetch("another Debian", *make, environment=environment)
        pip = (sys.executable, "-m", "pip", "install", "-c", ROOT / "constraints.txt", "--only-binary", ":all:")
        target = ("--python-version", version, "--target", root / "opt" / "hvdrun", "--no-compile")
        fetch(f"the packages for Python {version}", *pip, *target, wheel)
        yield root, version


def teach(release: str, folder: Path) -> Path:
    """What debootstrap is made of, in this folder, with a release that may be newer than debootstrap itself."""
    shutil.copytree(SCRIPTS, folder, symlinks=True)
    if not (folder / "scripts" / release).exists():
        (folder / "scripts" / release).symlink_to("sid")
    return folder


def fetch(what: str, *command: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run the command that gets it; do without where it cannot."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        do_without(f"{what} cannot be had here: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


@pytest.mark.parametrize("way", ["forked", "executed"])
def test_jobs_run_under_a_newer_python_without_a_warning(debian: tuple[Path, str], way: str) -> None:
    root, version = debian
    (root / "opt" / "train.py").write_text(FAILS, encoding="utf-8")
    options = ["--no-prefork"] if way == "executed" else []
    environment = ["env", "-i", "PATH=/usr/bin:/bin", "PYTHONPATH=/opt/hvdrun", "PYTHONWARNINGS=error"]
    hvdrun = ["python3", "-m", "hvdrun", "-v", "-np", "2", *options, "python3", "/opt/train.py"]
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, str(root)]
    run = subprocess.run([*unshare, *environment, *hvdrun], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 3, run.stderr
    assert sorted(run.stdout.splitlines()) == [f"[{rank}] one of 2 {version.replace('.', ' ')}" for rank in range(2)]
    assert run.stderr.count(f", {way}") == 2, run.stderr
