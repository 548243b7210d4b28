"""Jobs under the Python of a newer Debian, in a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.house.sources import ROOT
from tests.lab.requirements import do_without, find_program
from tests.system.scripts import JOIN

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
RELEASE, VERSION = "trixie", "3.13"
# All that is started there ends with the command.
ENTER = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
FAILS = f"""{JOIN}
print("one of", join().assignment.size, *sys.version_info[:2], flush=True)
sys.exit(3 if os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture(scope="module")
def debian() -> Iterator[Path]:
    """The root of another Debian, with hvdrun and what it needs in /opt/hvdrun."""
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
        fetch("another Debian", debootstrap, "--variant=minbase", "--include=python3", RELEASE, root)
        pip = (sys.executable, "-m", "pip", "install", "-c", ROOT / "constraints.txt", "--only-binary", ":all:")
        target = ("--python-version", VERSION, "--target", root / "opt" / "hvdrun", "--no-compile")
        fetch(f"the packages for Python {VERSION}", *pip, *target, wheel)
        yield root


def fetch(what: str, *command: str | Path) -> None:
    """Run the command that gets it; do without where it cannot."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        do_without(f"{what} cannot be had here: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


@pytest.mark.parametrize("way", ["forked", "executed"])
def test_jobs_run_under_a_newer_python_without_a_warning(debian: Path, way: str) -> None:
    (debian / "opt" / "train.py").write_text(FAILS, encoding="utf-8")
    options = ["--no-prefork"] if way == "executed" else []
    environment = ["env", "-i", "PATH=/usr/bin:/bin", "PYTHONPATH=/opt/hvdrun", "PYTHONWARNINGS=error"]
    hvdrun = ["python3", "-m", "hvdrun", "-v", "-np", "2", *options, "python3", "/opt/train.py"]
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, str(debian)]
    run = subprocess.run([*unshare, *environment, *hvdrun], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 3, run.stderr
    assert sorted(run.stdout.splitlines()) == ["[0] one of 2 3 13", "[1] one of 2 3 13"]
    assert run.stderr.count(f", {way}") == 2, run.stderr
