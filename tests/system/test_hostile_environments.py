"""Each program of hvdrun in each hostile environment: it does its work, or ends with one sentence, and no bug."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.old_python import VARIANTS
from tests.system.launcher import Launcher
from tests.waiting import wait_until

# Root passes every permission. Without these two capabilities it is bound by those of its own files.
_BOUND = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override,-dac_read_search")
_LONG = "n" * 300
# In the place of libfaketime, with which `time.sleep()` of Python 3.11 fails.
CLOCK = Path(__file__).with_name("preload") / "clock.c"


@dataclass
class Surroundings:
    """How a program is started.

    folder: the folder of the test. unset: variables that it does not have. limits: words of the shell's ulimit.
    outer: words before all others. group: a control group of its own.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    limits: str = ""
    outer: tuple[str, ...] = ()
    directory: Path | None = None
    group: Path | None = None

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

    def end(self) -> None:
        """Let the folder, and the control group of processes that end, be removed."""
        for closed in self.folder.glob("closed"):
            closed.chmod(0o700)
        if self.group is not None:
            wait_until(lambda: not (self.group / "cgroup.procs").read_text() if self.group else True)
            self.group.rmdir()


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


def unshare(*words: str) -> Callable[[Surroundings], None]:
    """A namespace of its own; the words are what `unshare` takes."""

    def make(around: Surroundings) -> None:
        command = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), *words]
        if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
            pytest.skip("no namespace can be made here")
        around.outer = tuple(command)

    return make


def keep_only(*programs: str) -> Callable[[Surroundings], None]:
    """PATH has these programs alone."""

    def make(around: Surroundings) -> None:
        folder = around.folder / "few"
        folder.mkdir()
        for program in programs:
            (folder / program).symlink_to(str(shutil.which(program)))
        around.variables["PATH"] = str(folder)

    return make


def allow_in_group(processes: int) -> Callable[[Surroundings], None]:
    """A control group allows so many processes and threads."""

    def make(around: Surroundings) -> None:
        around.group = group = make_group(around.folder.parent.name + around.folder.name)
        (group / "pids.max").write_text(str(processes))
        around.outer = ("/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")

    return make


def make_group(name: str) -> Path:
    """A new control group that can limit processes, of the first or the second version of these."""
    root = Path("/sys/fs/cgroup")
    group = (root / "pids" if (root / "pids").is_dir() else root) / name
    try:
        group.mkdir()
        if (group / "pids.max").exists():
            return group
        group.rmdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    pytest.skip("the control groups of this machine do not limit processes")


def shift_clock(days: int) -> Callable[[Surroundings], None]:
    def make(around: Surroundings) -> None:
        if (compiler := shutil.which("gcc") or shutil.which("cc")) is None:
            pytest.skip("no compiler of C is here to build another clock")
        library = around.folder / "clock.so"
        words = [compiler, "-shared", "-fPIC", f"-DOFFSET={days * 86400}", "-o", str(library), str(CLOCK)]
        subprocess.run(words, check=True, timeout=60)
        around.variables["LD_PRELOAD"] = str(library)

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
    "hardly any open files": limit("-n 20"),
    "a loopback that is down": unshare("--net"),
    "a hidden /proc": unshare("--mount", "/bin/sh", "-c", 'mount -t tmpfs tmpfs /proc && exec "$@"', "sh"),
    "little memory": limit("-v 300000"),
    "almost enough memory": limit("-v 1000000"),
    "enough memory": limit("-v 1200000"),
    "few processes": allow_few_processes,
    "names of tokens that are none": work_in_shared_names,
    "a control group of 8 processes": allow_in_group(8),
    "a control group of 18 processes": allow_in_group(18),
    "a control group of 40 processes": allow_in_group(40),
    "a clock 3 days ahead": shift_clock(3),
    "a clock 3 days behind": shift_clock(-3),
    "a clock 400 days behind": shift_clock(-400),
}

OFTEN = {"a closed folder on PATH", "a TMPDIR too long", "a control group of 18 processes"}
# What each program does where nothing is wrong: its words, its exit code, and a part of its output.
PROGRAMS = {
    "launcher": (("--dry-run", "-np", "2", "sh", "-c", "echo ran"), 0, "--dry-run: nothing is started"),
    "worker": (("-np", "1", "sh", "-c", "echo ran"), 0, "ran"),
    "agent": (
        ("agent", "--join", "127.0.0.1:1", "--token-file", "absent.token", "--join-timeout", "0.1s"),
        75,
        "no job was there for 0.1 s (--join-timeout)",
    ),
    "agent of a job": (("-np", "1", "-H", "far", "--rsh", "./rsh", "sh", "-c", "echo ran"), 0, "ran"),
}

_ADDRESSES = (
    r"needs 1048576 KiB of addresses, but `ulimit -v` is \d+; raise it, or set it in the command that hvdrun runs"
)
_START = r"can start only \d+; raise `ulimit -u`, `ulimit -v`, or pids.max of the control group"
_AGENT = f"the agent needs 16 threads, but {_START}"
_PAIR = f"a launcher with an agent needs 32 threads, but {_START}"
_FILES = "1 worker needs 67 open files, but `ulimit -Hn` is 64; raise it"
_FEW_FILES = "needs 64 open files, but `ulimit -Hn` is 20; raise it"
_LOOPBACK = r"cannot reach 127.0.0.1 \(Network is unreachable\): bring up the loopback \(ip link set lo up\)"
_PROC = r"cannot read /proc \(No such file or directory\): mount procfs there \(mount -t proc proc /proc\)"
# A thread more is there while the agent examines its host.
_GROUP = "1 worker needs 17 processes and threads, .* but pids.max of the control group leaves 1[56]; raise it"

# The message of a program in an environment where it refuses to work. In all other environments it works.
REFUSALS = {
    "few open files": {"worker": _FILES, "agent of a job": _FILES},
    **{
        condition: {
            "worker": f"a launcher with an agent {sentence}",
            "agent": f"the agent {sentence}",
            "agent of a job": f"the agent {sentence}",
        }
        for condition, sentence in (
            ("hardly any open files", _FEW_FILES),
            ("a loopback that is down", _LOOPBACK),
            ("a hidden /proc", _PROC),
        )
    },
    "little memory": {
        "worker": f"a launcher with an agent {_ADDRESSES}",
        "agent": f"the agent {_ADDRESSES}",
        "agent of a job": f"the agent {_ADDRESSES}",
    },
    "few processes": {"worker": _PAIR, "agent": _AGENT, "agent of a job": _AGENT},
    "a control group of 8 processes": {"worker": _PAIR, "agent": _AGENT, "agent of a job": _AGENT},
    "a control group of 18 processes": {"worker": _PAIR, "agent of a job": _GROUP},
}
REFUSALS["almost enough memory"] = REFUSALS["little memory"]


@pytest.mark.parametrize(
    ("program", "condition"),
    [
        pytest.param(program, condition, marks=[] if condition in OFTEN else [pytest.mark.nightly])
        for condition in CONDITIONS
        for program in PROGRAMS
    ],
)
def test_a_program_does_its_work_in_a_hostile_environment_or_says_why_not(
    hvdrun: Launcher, tmp_path: Path, program: str, condition: str
) -> None:
    around = Surroundings(tmp_path)
    CONDITIONS[condition](around)
    words, code, shown = PROGRAMS[program]
    python = [sys.executable, "-m", "hvdrun", *(("--no-prefork",) if program != "agent" else ()), *words]
    if program == "agent of a job":  # it alone is started there, as by an ssh
        script = f'#!/bin/sh\nshift\nexec {shlex.join(around.words())} /bin/sh -c "$*"\n'
        hvdrun.write("rsh", script).chmod(0o755)
    else:
        python = [*around.words(), *python]
    finished = hvdrun.start_words(python).wait()
    around.end()
    assert "bug in hvdrun" not in finished.stderr
    assert "Traceback" not in finished.stderr
    refusal = REFUSALS.get(condition, {}).get(program)
    if refusal is not None:
        assert finished.returncode == 125
        assert re.search(rf"^hvdrun: .*{refusal}", finished.stderr, re.MULTILINE), finished.stderr
    else:
        assert finished.returncode == code, finished.stderr
        assert shown in finished.stdout + finished.stderr
