"""A forked worker cannot be told from an executed one: whatever it runs is run both ways, and compared.

Left out are the differences that `worker_runtime/program.py` and `worker_runtime/forkserver.py` name: sys.modules, the
frame below the program's, the depth at which recursion ends, hash randomisation, what garbage collections look at.
Finer points of how a program ends are compared in `tests/worker_runtime/test_program.py`, without hvdrun.

Long because it is one table: what is looked at from so many sides should be found in one place.
"""

import json
import os
import re
import resource
import shutil
import signal
import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hvdrun.horovod_path import FOLDER
from tests.system.launcher import Finished, Launcher

FACTS = Path(__file__).with_name("facts.py")
FORKED = "forked"
EXECUTED = "executed (--no-prefork)"
SPAWNED = re.compile(r"^hvdrun: \S+ is process (\d+), (.*)$", re.MULTILINE)
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


@dataclass(frozen=True, slots=True)
class Ended:
    """What can be seen of a run from outside; lines of several workers in an order of their own."""

    returncode: int
    stdout: list[str]
    stderr: list[str]

    @classmethod
    def of(cls, finished: Finished, size: int) -> "Ended":
        """What the workers wrote, without what hvdrun said."""
        texts = []
        for text in (finished.stdout, finished.stderr):
            lines = [ADDRESS.sub("0x", line) for line in text.splitlines() if line.startswith("[")]
            texts.append(lines if size == 1 else sorted(lines))
        return cls(finished.returncode, *texts)

    def facts(self) -> list[dict[str, Any]]:
        """What the workers printed as JSON, by rank."""
        return [json.loads(line.partition("] ")[2]) for line in self.stdout if line.startswith("[") and "] {" in line]


class BothWays:
    """Runs a command with forked and with executed workers, at the same time."""

    def __init__(self, hvdrun: Launcher) -> None:
        self.hvdrun = hvdrun

    def __call__(
        self,
        *command: str | Path,
        size: int = 1,
        environment: Mapping[str, str] | None = None,
        fallback: str | None = None,
    ) -> tuple[Ended, Ended]:
        """How the forked ones ended, and how the executed ones.

        fallback: the reason, a regular expression, for which the first are executed as well.
        """
        ways = (
            (FORKED if fallback is None else rf"executed \({fallback}\)", ()),
            (re.escape(EXECUTED), ("--no-prefork",)),
        )
        jobs = [
            (way, self.hvdrun.start("-np", str(size), "-v", *options, *command, environment=environment))
            for way, options in ways
        ]
        ends = []
        for way, running in jobs:
            finished = running.wait()
            spawned = [how for _, how in SPAWNED.findall(finished.stderr)]
            assert len(spawned) == size, finished.stderr
            assert all(re.fullmatch(way, how) for how in spawned), finished.stderr
            ends.append(Ended.of(finished, size))
        return ends[0], ends[1]


@pytest.fixture
def both(hvdrun: Launcher) -> BothWays:
    """`both("python", "script.py")`."""
    return BothWays(hvdrun)


def run_alike(both: BothWays, *command: str | Path, **how: Any) -> Ended:  # noqa: ANN401 - handed on
    """Run both ways, which must not differ; how they ended."""
    forked, executed = both(*command, **how)
    for one, other in zip(forked.facts(), executed.facts(), strict=True):
        assert {key: one[key] for key in one if one[key] != other[key]} == {
            key: other[key] for key in other if one[key] != other[key]
        }
    assert forked == executed
    return forked


def put_facts(hvdrun: Launcher, *names: str) -> None:
    """Put the script that prints facts at these places below the working directory."""
    for each in names:
        target = hvdrun.directory / each
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FACTS, target)


@pytest.mark.parametrize(
    "command",
    [
        ("script.py", "a", "b c", "", "--flag=ä"),
        ("./script.py",),
        ("{directory}/script.py",),
        ("with blanks/script.py",),
        ("with blanks/../script.py",),
        ("link.py",),
        ("linked/script.py",),
        ("with blanks",),
        ("./with blanks/",),
        ("archive.zip", "-m", "a"),
        ("-m", "script", "a", "-m"),
        ("-m", "package", "a"),
        ("-m", "package.module"),
    ],
    ids=" ".join,
)
def test_a_program_finds_itself_as_it_was_named(both: BothWays, command: tuple[str, ...]) -> None:
    hvdrun = both.hvdrun
    put_facts(hvdrun, "script.py", "with blanks/script.py", "with blanks/__main__.py")
    put_facts(hvdrun, "package/__init__.py", "package/__main__.py", "package/module.py")
    (hvdrun.directory / "link.py").symlink_to("with blanks/script.py")
    (hvdrun.directory / "linked").symlink_to("with blanks")
    with zipfile.ZipFile(hvdrun.directory / "archive.zip", "w") as archive:
        archive.write(FACTS, "__main__.py")
    ended = run_alike(both, "python", *(word.format(directory=hvdrun.directory) for word in command))
    assert ended.returncode == 0
    (facts,) = ended.facts()
    assert facts["leads"] == [True, True]
    assert facts["descriptors"] == ["0", "1", "2"]
    assert "hvdrun.agent" in facts["parent"]
    assert facts["a child's"] is facts["the kernel's"] is facts["is main thread"] is True


@pytest.mark.parametrize("interpreter", ["python3", "python3.11", sys.executable])
def test_an_interpreter_is_known_by_the_name_it_was_called_by(both: BothWays, interpreter: str) -> None:
    put_facts(both.hvdrun, "script.py")
    (facts,) = run_alike(both, interpreter, "script.py").facts()
    assert facts["cmdline"] == f"{interpreter}\0script.py\0"


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONSAFEPATH": "1", "PYTHONPATH": "modules:/nowhere"},
        {"PYTHONHASHSEED": "7", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "1"},
        {"PYTHONIOENCODING": "latin-1:replace", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "", "LC_ALL": "C"},
        {"PYTHONDEVMODE": "1", "PYTHONUTF8": "1", "BLANKS": " a b ", "EMPTY": "", "LINES": "a\nb", "ODD": "\udcff"},
    ],
    ids=" ".join,
)
def test_the_environment_counts(both: BothWays, environment: dict[str, str]) -> None:
    put_facts(both.hvdrun, "script.py")
    (facts,) = run_alike(both, "python", "script.py", environment=environment).facts()
    own = environment | {"PYTHONPATH": ":".join([str(FOLDER), *filter(None, [environment.get("PYTHONPATH")])])}
    assert own.items() <= facts["environment"].items()


@contextmanager
def a_strange_process() -> Iterator[None]:
    """Things that a process hands on to its children are unusual within."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    mask = os.umask(0o027)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (777, limit[1]))
        os.setpriority(os.PRIO_PROCESS, 0, 3)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        os.umask(mask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take niceness back")
def test_what_a_process_hands_on_arrives(both: BothWays) -> None:
    put_facts(both.hvdrun, "script.py")
    with a_strange_process():
        (facts,) = run_alike(both, "python", "script.py").facts()
    assert (facts["nice"], facts["limits"]["RLIMIT_NOFILE"][0]) == (3, 777)
    assert "Umask:\t0027" in facts["status"]
    assert facts["signals"][str(int(signal.SIGUSR1))] == "<Handlers.SIG_IGN: 1>"


def test_standard_input_is_read_as_it_comes(both: BothWays) -> None:
    hvdrun = both.hvdrun
    hvdrun.write("script.py", "import sys; print(sys.stdin.seekable(), input(), repr(sys.stdin.read()))")
    for options, way in (((), FORKED), (("--no-prefork",), EXECUTED)):
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as stdin, os.fdopen(writer, "wb") as pipe:
            running = hvdrun.start("-np", "1", "-v", "--stdin", "0", *options, "python", "script.py", stdin=stdin)
            pipe.write("ä\nrest".encode())
        finished = running.wait()
        assert SPAWNED.findall(finished.stderr)[0][1] == way
        assert finished.stdout == "[0] False ä 'rest'\n"


# Classes of the script are pickled, here and in other processes, from everywhere; several ways of multiprocessing.
PICKLES = """
import atexit, multiprocessing, os, pickle, sys, threading

class Thing:
    def __init__(self, value): self.value = value
    def __eq__(self, other): return self.value == other.value

class Inner:
    class Deep: pass

def double(thing):
    return Thing(2 * thing.value)

def start():
    print("initialised", __name__)

def copy(where):
    assert pickle.loads(pickle.dumps(Thing(3))) == Thing(3)
    assert type(pickle.loads(pickle.dumps(Inner.Deep()))) is Inner.Deep
    main = sys.modules["__main__"]
    print(where, Thing.__module__, main.Thing is Thing, main.__file__ if where == "here" else "")

if __name__ == "__main__":
    copy("here")
    thread = threading.Thread(target=copy, args=("thread",))
    thread.start()
    thread.join()
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            print(method, [thing.value for thing in pool.map(double, [Thing(1), Thing(2)])], flush=True)
        child = context.Process(target=sys.exit, args=(7,))
        child.start()
        child.join()
        print(method, child.exitcode)
    atexit.register(copy, "atexit")
    threading.Thread(target=lambda: (threading.main_thread().join(), copy("afterwards"))).start()
"""


@pytest.mark.parametrize("command", [("script.py",), ("-m", "script")], ids=" ".join)
def test_classes_of_the_script_travel(both: BothWays, command: tuple[str, ...]) -> None:
    both.hvdrun.write("script.py", PICKLES)
    ended = run_alike(both, "python", *command)
    assert ended.returncode == 0
    assert ended.stderr == []
    assert "[0] forkserver [2, 4]" in ended.stdout
    assert ended.stdout[-1].startswith("[0] atexit __main__ True")


# As above, in a process that has multiprocessing from before: torch brings it.
SENT_BACK = """
import multiprocessing
import torch

class Thing: pass

def make(_):
    return Thing()

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(type(pool.map(make, [1])[0]) is Thing)
"""


def test_a_class_of_the_script_comes_back_from_a_spawned_child(both: BothWays) -> None:
    both.hvdrun.write("script.py", SENT_BACK)
    ended = run_alike(both, "python", "script.py")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, ["[0] True"], [])


ENDINGS: dict[str, tuple[int, str]] = {
    "nothing": (0, "pass"),
    "exit": (0, "sys.exit()"),
    "exit 3": (3, "sys.exit(3)"),
    "exit 256 + 3": (3, "sys.exit(256 + 3)"),
    "exit -1": (255, "sys.exit(-1)"),
    "exit with a text": (1, "sys.exit('no data\\nat all')"),
    "exit with an object": (1, "sys.exit((1, 'two'))"),
    "exit from within": (4, "def f():\n    try:\n        quit(4)\n    finally:\n        print('finally')\nf()"),
    "exit from an atexit function": (0, "atexit.register(sys.exit, 5)"),
    "os._exit": (7, "print('lost', end=''); os._exit(7)"),
    "SIGKILL": (137, "os.kill(os.getpid(), signal.SIGKILL)"),
    "SIGTERM": (143, "os.kill(os.getpid(), signal.SIGTERM)"),
    "SIGSEGV": (139, "os.kill(os.getpid(), signal.SIGSEGV)"),
    "abort": (134, "os.abort()"),
    "SIGINT": (130, "atexit.register(print, 'at exit'); os.kill(os.getpid(), signal.SIGINT); signal.pause()"),
    "KeyboardInterrupt": (130, "try:\n    raise KeyboardInterrupt('enough')\nfinally:\n    print('finally')"),
    "a full disk": (1, "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')"),
    "a full disk at the end": (120, "sys.stdout = open('/dev/full', 'w'); print('lost')"),
    "error": (1, "def f():\n    1 / 0\nf()"),
    "chained": (1, "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e"),
    "group": (1, "raise ExceptionGroup('all', [ValueError(1), ExceptionGroup('some', [KeyError('k')])])"),
    "recursion": (1, "def f(): f()\nsys.tracebacklimit = 3\nf()"),
    "hook": (
        1,
        "sys.excepthook = lambda *a: print(a[0], traceback.extract_tb(a[2]), a[1].__traceback__ is a[2])\n1 / 0",
    ),
    "hook that exits": (9, "def hook(*_): sys.exit(9)\nsys.excepthook = hook\n1 / 0"),
    "hook that fails": (1, "def hook(*_): {}['a']\nsys.excepthook = hook\n1 / 0"),
}
IMPORTS = "import atexit, os, signal, sys, threading, time, traceback, warnings\n"


@pytest.mark.parametrize(("code", "script"), ENDINGS.values(), ids=list(ENDINGS))
def test_it_ends_alike(both: BothWays, code: int, script: str) -> None:
    both.hvdrun.write("script.py", IMPORTS + script + "\n")
    assert run_alike(both, "python", "script.py").returncode == code


# What happens besides the main thread, and what is only said, in the order in which Python does it.
BESIDES = """
import atexit, gc, logging, os, sys, threading, time, warnings

print("first", end=" ")
print("bytes \\u00e4", file=sys.stderr)
atexit.register(print, "registered first, called last")
atexit.register(lambda: 1 / 0)
atexit.register(lambda: print(threading.active_count(), "threads at exit"))
warnings.warn("a warning")
warnings.warn_explicit("explicit", UserWarning, "file.py", 3)
logging.getLogger("a").warning("logged")
logging.basicConfig(format="%(module)s %(lineno)s %(processName)s %(threadName)s %(message)s")
logging.warning("logged again")

class Unraisable:
    def __del__(self): raise RuntimeError("in a destructor")

del_me = Unraisable()
del del_me

def fail(): raise LookupError("in a thread")

def outlast():
    threading.main_thread().join()
    print("a thread that is waited for", flush=True)

thread = threading.Thread(target=fail, name="failing")
thread.start()
thread.join()
threading.Thread(target=outlast).start()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
kept = Unraisable()
print("last")
"""


@pytest.mark.parametrize("command", [("script.py",), ("-m", "script")], ids=" ".join)
def test_threads_warnings_and_exit_functions_behave_alike(both: BothWays, command: tuple[str, ...]) -> None:
    both.hvdrun.write("script.py", BESIDES)
    ended = run_alike(both, "python", *command)
    assert ended.returncode == 0
    assert ended.stdout[-1] == "[0] registered first, called last"
    assert any("LookupError: in a thread" in line for line in ended.stderr)
    assert any(re.search(r"script.py:\d+: UserWarning: a warning", line) for line in ended.stderr)


@pytest.mark.parametrize(
    "command", [("-m", "script"), ("-m", "package"), ("package",), ("sub/script.py",)], ids=" ".join
)
def test_a_traceback_has_no_frame_of_ours(both: BothWays, command: tuple[str, ...]) -> None:
    for each in ("script.py", "package/__init__.py", "package/__main__.py", "sub/script.py"):
        (both.hvdrun.directory / each).parent.mkdir(exist_ok=True)
        failing = each != "package/__init__.py"
        both.hvdrun.write(each, "def f():\n    raise ValueError('here')\nf()\n" if failing else "")
    ended = run_alike(both, "python", *command)
    assert ended.returncode == 1
    assert ended.stderr[0] == "[0] Traceback (most recent call last):"
    assert not any("worker_runtime" in line or "<string>" in line for line in ended.stderr)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("script.py", b"a b\n", "the script cannot be compiled: SyntaxError"),
        ("script.py", b"x = '\xff'\n", "the script cannot be compiled: SyntaxError"),
        ("script.py", b"x = '\0'\n", "the script cannot be compiled: SyntaxError"),
        ("script.py/no_main.py", b"", None),
        (
            "script.py/json.py",
            b"",
            ".*/script.py/json.py stands before another json, which the forkserver has imported",
        ),
        ("sub/socket.py", b"", ".*/sub/socket.py stands before another socket, which the forkserver has imported"),
    ],
    ids=["syntax", "encoding", "null", "empty folder", "folder with a module", "module beside it"],
)
def test_what_is_wrong_with_a_script_is_said_by_python(
    both: BothWays, name: str, text: bytes, reason: str | None
) -> None:
    target = both.hvdrun.directory / name
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(text)
    if target.name == "socket.py":
        both.hvdrun.write("sub/script.py", "import socket; print(socket.__file__)")
        assert run_alike(both, "python", "sub/script.py", fallback=reason).stdout == [f"[0] {target}"]
    else:
        assert run_alike(both, "python", "script.py", fallback=reason).returncode == 1


@pytest.mark.parametrize("name", ["nowhere", "package", "package.nowhere", "failing.module", "json"])
def test_what_is_wrong_with_a_module_is_said_by_python(both: BothWays, name: str) -> None:
    for package, text in (("package", "print('imported')"), ("failing", "1 / 0")):
        (both.hvdrun.directory / package).mkdir()
        both.hvdrun.write(f"{package}/__init__.py", text)
    reason = "the forkserver has imported json already" if name == "json" else None
    assert run_alike(both, "python", "-m", name, fallback=reason).returncode == 1


@pytest.mark.parametrize(
    ("command", "environment", "reason"),
    [
        (("python", "-u", "script.py"), {}, "not a plain Python command"),
        (("python", "-O", "script.py"), {}, "not a plain Python command"),
        (("python", "-X", "dev", "script.py"), {}, "not a plain Python command"),
        (("python", "-c", "print(1)"), {}, "not a plain Python command"),
        (("bash", "-c", "python script.py"), {}, "not a plain Python command"),
        (("./script.py",), {}, "not a plain Python command"),
        (("python", "threads.py"), {}, "the script names OMP_NUM_THREADS, which must be set before the imports"),
        (("python", "-m", "threads"), {}, "the script names OMP_NUM_THREADS, which must be set before the imports"),
        (("python", "script.py"), {"MKL_NUM_THREADS": "2"}, "MKL_NUM_THREADS is set"),
        (("python", "script.py"), {"OMP_NUM_THREADS": "2,1"}, "OMP_NUM_THREADS is set"),
        (
            ("python", "script.py"),
            {"PYTHONPATH": "threaded"},
            r"something that is imported here \(a sitecustomize, a preload\) started 1 more threads",
        ),
        (
            ("python", "script.py"),
            {"PYTHONPATH": "opening"},
            "something that is imported here keeps /dev/zero open",
        ),
        (("python", "script.py"), {"PYTHONPATH": "dying"}, "the forkserver ended: it dies"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_forked_is_executed_and_said(
    both: BothWays, command: tuple[str, ...], environment: dict[str, str], reason: str
) -> None:
    hvdrun = both.hvdrun
    hvdrun.write("script.py", "#!/usr/bin/env python\nimport sys; print(sys.flags, sys.argv)\n").chmod(0o755)
    hvdrun.write("threads.py", "import os; os.environ['OMP_NUM_THREADS'] = '2'; print('set')\n")
    for folder, text in (
        ("threaded", "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"),
        ("opening", "kept = open('/dev/zero')"),
        ("dying", "import os, sys\nif 'serve' in sys.orig_argv[-1]: os.write(2, b'it dies'); os._exit(0)"),
    ):
        (hvdrun.directory / folder).mkdir()
        hvdrun.write(f"{folder}/sitecustomize.py", text)
    ended = run_alike(both, *command, environment=environment, fallback=reason)
    assert ended.returncode == 0
    assert ended.stderr == []


def test_what_the_imports_say_is_said_by_every_worker(both: BothWays) -> None:
    (both.hvdrun.directory / "site").mkdir()
    both.hvdrun.write("site/sitecustomize.py", "import sys\nprint('out', 'x' * 100_000)\nprint('err', file=sys.stderr)")
    both.hvdrun.write("script.py", "print('script')")
    ended = run_alike(both, "python", "script.py", size=2, environment={"PYTHONPATH": "site"})
    assert ended.stderr == ["[0] err", "[1] err"]
    assert [len(line) for line in ended.stdout] == [100_008, 10, 100_008, 10]


def test_an_interpreter_without_our_runtime_is_used_nevertheless(both: BothWays) -> None:
    """A virtual environment without any package stands for it."""
    other = both.hvdrun.directory / "other"
    venv.create(other, symlinks=True)
    both.hvdrun.write("script.py", "import sys; print(sys.prefix)")
    reason = "the forkserver ended: ModuleNotFoundError: No module named 'worker_runtime'"
    environment = {"PYTHONPATH": ""}
    ended = run_alike(both, other / "bin/python", "script.py", fallback=reason, environment=environment)
    assert ended.stdout == [f"[0] {other}"]


# What torch computes, with how many threads, and by which random numbers; and what is to differ from worker to worker.
TRAINS = """
import json, multiprocessing, os, random, warnings
import numpy, threadpoolctl, torch
import worker_runtime.torch as hvd

warnings.simplefilter("error")
secret = multiprocessing.current_process().authkey.hex()
differing = [torch.initial_seed(), torch.rand(1).item(), numpy.random.rand(), random.random(), secret]
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.rand(64, 1, 8, 8), torch.arange(64) % 10)
losses = []
for images, labels in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, shuffle=True):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
big = torch.ones(600, 600)
losses.append((big @ big).sum().item() + float(numpy.ones((600, 600)).dot(numpy.ones((600, 600))).sum()))
hvd.init()
losses.append(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item())
hvd.shutdown()
pools = [(pool["internal_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()]
threads = [torch.get_num_threads(), torch.get_num_interop_threads(), sorted(pools)]
print(json.dumps({"losses": losses, "threads": threads, "parallel": torch.__config__.parallel_info()}))
print("differing", json.dumps(differing))
"""


@pytest.mark.parametrize(("size", "threads"), [(1, None), (2, None), (2, "2")])
def test_torch_trains_alike(both: BothWays, size: int, threads: str | None) -> None:
    both.hvdrun.write("script.py", TRAINS)
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(both.hvdrun.directory / "cache")}  # or torch leaves one in /tmp
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    forked, executed = both("python", "script.py", size=size, environment=environment)
    assert forked.stderr == executed.stderr == []
    assert forked.returncode == executed.returncode == 0
    assert forked.facts() == executed.facts()
    texts = [
        line.partition("differing ")[2] for way in (forked, executed) for line in way.stdout if "differing" in line
    ]
    drawn = list(zip(*map(json.loads, texts), strict=True))
    assert len(texts) == 2 * size
    assert [len(set(values)) for values in drawn] == [2 * size] * 5


def test_sixteen_workers_at_once(hvdrun: Launcher) -> None:
    hvdrun.write("script.py", "import os; print(os.getsid(0) == os.getpid(), os.environ['HOROVOD_RANK'])")
    finished = hvdrun("-np", "16", "-v", "python", "script.py")
    spawned = SPAWNED.findall(finished.stderr)
    assert finished.returncode == 0
    assert {how for _, how in spawned} == {FORKED}
    assert len({pid for pid, _ in spawned}) == 16
    assert sorted(finished.stdout.splitlines()) == sorted(f"[{rank}] True {rank}" for rank in range(16))


# The forkserver is killed by its own preload: at its start, or right after it has forked the second worker.
KILLED = """
import os, sys
if "import serve" in sys.orig_argv[-1]:
    forks, own = [], os.getpid()
    def count():
        forks.append(None)
        if os.getpid() == own and len(forks) == {forks}:
            os.kill(own, 9)
    os.register_at_fork(after_in_parent=count)
    if {forks} == 0:
        os.kill(own, 9)
"""


@pytest.mark.parametrize("forks", [0, 1, 3])
def test_a_forkserver_that_is_killed_costs_no_worker_and_makes_none_twice(hvdrun: Launcher, forks: int) -> None:
    (hvdrun.directory / "site").mkdir()
    hvdrun.write("site/sitecustomize.py", KILLED.format(forks=forks))
    hvdrun.write(
        "script.py",
        "import os, sys; rank = os.environ['HOROVOD_RANK']; print(rank); print(rank, file=open('ran', 'a'))\n"
        "sys.exit(3 if rank == '3' else 0)",
    )
    finished = hvdrun("-np", "4", "-v", "python", "script.py", environment={"PYTHONPATH": "site"})
    assert finished.returncode == 3
    assert sorted(how for _, how in SPAWNED.findall(finished.stderr)) == [
        *["executed (the forkserver ended)"] * (4 - max(0, forks - 1)),
        *[FORKED] * max(0, forks - 1),
    ]
    assert "rank 3 on localhost (slot 3) failed first" in finished.stderr
    ran = (hvdrun.directory / "ran").read_text(encoding="utf-8").split()
    assert "3" in ran
    assert len(ran) == len(set(ran))


# Rank 1 ends as the test says when it is told to; the others wait for it.
WAITS = """
import os, pathlib, signal, subprocess, sys, time

print("alive", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
if os.environ["HOROVOD_RANK"] == "1":
    {how}
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [("sys.exit(9)", 9, "exit code 9"), ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV")],
)
def test_workers_outlive_the_forkserver_and_end_with_their_true_codes(
    hvdrun: Launcher, how: str, code: int, told: str
) -> None:
    hvdrun.write("script.py", WAITS.format(how=how))
    running = hvdrun.start("-np", "2", "-v", "python", "script.py")
    running.stdout.wait_for(r"(\[[01]\] alive\n){2}", 20)
    (forkserver,) = hvdrun.processes("worker_runtime.forkserver")
    os.kill(forkserver.pid, signal.SIGKILL)
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert {how for _, how in SPAWNED.findall(finished.stderr)} == {FORKED}
    assert finished.returncode == code
    assert told in finished.stderr


def test_a_forked_worker_s_family_ends_with_it_wherever_it_went(hvdrun: Launcher) -> None:
    started = (
        "subprocess.Popen(['sleep', '600']); subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "os.system('(setsid sleep 600 &)'); os._exit(5)"
    )
    hvdrun.write("script.py", WAITS.format(how=started))
    running = hvdrun.start("-np", "2", "-v", "--grace", "0.5", "python", "script.py")
    running.stdout.wait_for(r"(\[[01]\] alive\n){2}", 20)
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert {how for _, how in SPAWNED.findall(finished.stderr)} == {FORKED}
    assert finished.returncode == 5
    assert hvdrun.processes("sleep") == ()


REMOVES = """
import os, sys
if "import serve" in sys.orig_argv[-1]:
    os.register_at_fork(before=lambda: os.path.exists("script.py") and os.remove("script.py"))
"""


def test_a_script_that_goes_away_in_time_is_python_s_to_complain_about(hvdrun: Launcher) -> None:
    """The preload of the forkserver removes it at the first fork: the worker finds nothing to run."""
    (hvdrun.directory / "site").mkdir()
    hvdrun.write("site/sitecustomize.py", REMOVES)
    hvdrun.write("script.py", "print('never')")
    finished = hvdrun("-np", "1", "-v", "python", "script.py", environment={"PYTHONPATH": "site"})
    assert [how for _, how in SPAWNED.findall(finished.stderr)] == [FORKED]
    assert finished.returncode == 2
    assert "can't open file" in finished.stderr
    assert finished.stdout == ""
