"""Each program of hvdrun in each hostile environment: it does its work, or ends with one sentence, and no bug."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.old_python import VARIANTS
from tests.system.launcher import Launcher
from tests.system.tables import rest_nightly

# Root passes every permission. Without these two capabilities it is bound by those of its own files.
_BOUND = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override,-dac_read_search")
_LONG = "n" * 300


@dataclass
class Surroundings:
    """How a program is started.

    folder: of the test. unset: variables that it does not have. limits: words of the shell's ulimit.
    outer: words before all others.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    limits: str = ""
    outer: tuple[str, ...] = ()
    directory: Path | None = None

    def words(self) -> list[str]:
        """The words of a command that starts another one in them."""
        lines = [f"ulimit {self.limits}" if self.limits else ":", f"cd {self.directory or '.'}"]
        script = " && ".join([*lines, 'exec "$@"'])
        bound = list(_BOUND) if os.geteuid() == 0 else []
        environment = ["env", *(word for name in self.unset for word in ("-u", name))]
        environment += [f"{name}={value}" for name, value in self.variables.items()]
        bound = [] if self.outer else bound
        return [*bound, *self.outer, "/bin/sh", "-c", script, "sh", *map(str, [shutil.which("env"), *environment[1:]])]

    def close(self, name: str) -> Path:
        """A folder that may not be entered."""
        closed = self.folder / name
        (closed / "below").mkdir(parents=True)
        closed.chmod(0)
        return closed


def put_on_path(place: Callable[[Surroundings], str]) -> Callable[[Surroundings], None]:
    def make(around: Surroundings) -> None:
        around.variables["PATH"] = os.pathsep.join(
            [place(around), str(Path(sys.executable).parent), os.environ["PATH"]]
        )

    return make


def set_to(name: str, place: Callable[[Surroundings], str]) -> Callable[[Surroundings], None]:
    def make(around: Surroundings) -> None:
        around.variables[name] = place(around)

    return make


def drop(*names: str) -> Callable[[Surroundings], None]:
    def make(around: Surroundings) -> None:
        around.unset = names

    return make


def limit(words: str) -> Callable[[Surroundings], None]:
    def make(around: Surroundings) -> None:
        around.limits = words

    return make


def allow_few_processes(around: Surroundings) -> None:
    """Root passes the limit; another user may do what is needed to import hvdrun."""
    around.directory = Path("/")  # another user may not enter that of the test
    limited = ("prlimit", "--nproc=8")
    user = ("setpriv", "--reuid", "54321", "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    around.outer = (*user, *limited) if os.geteuid() == 0 else limited


def keep_only(*programs: str) -> Callable[[Surroundings], None]:
    """PATH has these programs alone."""

    def make(around: Surroundings) -> None:
        folder = around.folder / "few"
        folder.mkdir()
        for program in programs:
            (folder / program).symlink_to(str(shutil.which(program)))
        around.variables["PATH"] = str(folder)

    return make


def play(variant: str) -> Callable[[Surroundings], None]:
    def make(around: Surroundings) -> None:
        (around.folder / "sitecustomize.py").write_text(VARIANTS[variant], encoding="utf-8")
        around.variables["PYTHONPATH"] = str(around.folder)

    return make


def fifo(around: Surroundings) -> str:
    os.mkfifo(around.folder / "fifo")
    return str(around.folder / "fifo")


def loop(around: Surroundings) -> str:
    (around.folder / "loop").symlink_to("loop")
    return str(around.folder / "loop")


def work_in_shared_names(around: Surroundings) -> None:
    """The working directory has a FIFO and a link with the names of tokens of jobs."""
    around.directory = around.folder / "names"
    around.directory.mkdir()
    os.mkfifo(around.directory / "hvdrun-job-x.token")
    (around.directory / "hvdrun-job-y.token").symlink_to("/dev/zero")


CONDITIONS: dict[str, Callable[[Surroundings], None]] = {
    "a closed folder on PATH": put_on_path(lambda around: str(around.close("closed"))),
    "a folder below a closed one on PATH": put_on_path(lambda around: f"{around.close('closed')}/below"),
    "a name too long on PATH": put_on_path(lambda _: f"/{_LONG}"),
    "a loop of links on PATH": put_on_path(loop),
    "a FIFO on PATH": put_on_path(fifo),
    "a file's child on PATH": put_on_path(lambda _: "/etc/passwd/bin"),
    "a closed HOME": set_to("HOME", lambda around: str(around.close("closed"))),
    "a HOME below a closed folder": set_to("HOME", lambda around: f"{around.close('closed')}/below"),
    "a HOME that is a device": set_to("HOME", lambda _: os.devnull),
    "a HOME too long": set_to("HOME", lambda _: f"/{_LONG}"),
    "a closed TMPDIR": set_to("TMPDIR", lambda around: str(around.close("closed"))),
    "a TMPDIR that is a file": set_to("TMPDIR", lambda _: "/etc/passwd"),
    "a TMPDIR too long": set_to("TMPDIR", lambda _: f"/{_LONG}"),
    "a TMPDIR that is a FIFO": set_to("TMPDIR", fifo),
    "no PATH": drop("PATH"),
    "no HOME": drop("HOME"),
    "no TMPDIR": drop("TMPDIR"),
    "no LANG and no LC_ALL": drop("LANG", "LC_ALL"),
    "PATH with sh alone": keep_only("sh"),
    "no memfd_create and pidfd_open": play("absent"),
    "memfd_create and pidfd_open refused": play("refused"),
    "few open files": limit("-n 64"),
    "little memory": limit("-v 300000"),
    "almost enough memory": limit("-v 1000000"),
    "enough memory": limit("-v 1200000"),
    "few processes": allow_few_processes,
    "names of tokens that are none": work_in_shared_names,
}

# What each program does where nothing is wrong: its words, its exit code, and a part of its output.
PROGRAMS = {
    "launcher": (("--dry-run", "-np", "2", "sh", "-c", "echo ran"), 0, "--dry-run: nothing is started"),
    "worker": (("-np", "1", "sh", "-c", "echo ran"), 0, "ran"),
    "agent": (
        ("agent", "--join", "127.0.0.1:1", "--token-file", "absent.token", "--join-timeout", "0.1s"),
        75,
        "no job was there for 0.1 s (--join-timeout)",
    ),
}

_ADDRESSES = (
    r"needs 1048576 KiB of addresses, but `ulimit -v` is \d+; raise it, or set it in the command that hvdrun runs"
)
_PROCESSES = (
    r"needs 16 threads, but can start only \d; raise `ulimit -u`, `ulimit -v`, or pids.max of the control group"
)

# What a program says where it does not do its work. It does it in all other environments.
REFUSALS = {
    ("worker", "few open files"): "1 worker needs 66 open files, but `ulimit -Hn` is 64; raise it",
    ("worker", "little memory"): f"the launcher {_ADDRESSES}",
    ("agent", "little memory"): f"the agent {_ADDRESSES}",
    ("worker", "almost enough memory"): f"the launcher {_ADDRESSES}",
    ("agent", "almost enough memory"): f"the agent {_ADDRESSES}",
    ("worker", "few processes"): f"the launcher {_PROCESSES}",
    ("agent", "few processes"): f"the agent {_PROCESSES}",
}


@pytest.mark.parametrize(
    ("program", "condition"),
    rest_nightly([(program, condition) for condition in CONDITIONS for program in PROGRAMS], first=9),
)
def test_a_program_does_its_work_in_a_hostile_environment_or_says_why_not(
    hvdrun: Launcher, tmp_path: Path, program: str, condition: str
) -> None:
    around = Surroundings(tmp_path)
    CONDITIONS[condition](around)
    words, code, shown = PROGRAMS[program]
    python = [sys.executable, "-m", "hvdrun", *(("--no-prefork",) if program != "agent" else ()), *words]
    running = hvdrun.start_words([*around.words(), *python])
    finished = running.wait()
    for closed in tmp_path.glob("closed"):
        closed.chmod(0o700)
    assert "bug in hvdrun" not in finished.stderr
    assert "Traceback" not in finished.stderr
    if (program, condition) in REFUSALS:
        assert finished.returncode == 125
        assert re.search(rf"^hvdrun: .*{REFUSALS[program, condition]}", finished.stderr, re.MULTILINE), finished.stderr
    else:
        assert finished.returncode == code, finished.stderr
        assert shown in finished.stdout + finished.stderr
