"""A program run by a forkserver's worker, beside the same one run by the interpreter: they cannot be distinguished.

Left out are the differences that `worker_runtime/startup/program.py` and `forkserver.py` name: sys.modules, the depth
at which recursion ends, hash randomisation, what garbage collections look at.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.forkserver_process import Server, running
from worker_runtime.startup import program

FACTS = Path(__file__).parents[2] / "system" / "facts.py"
IMPORTS = "import atexit, inspect, os, signal, sys, threading, time, traceback, warnings\n"
SCRIPTS = {
    "nothing": "pass",
    "arguments": "print(sys.argv, sys.orig_argv, sys.path[:2], __file__, __name__, list(globals())[:9])",
    "itself": "import __main__; print(__main__.__dict__ is globals(), inspect.getsource(f := lambda: 1))",
    "docstring": "print(__doc__)",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "future": "from __future__ import annotations\nx: nothing = 1\nprint(__annotations__)",
    "encoding": "# -*- coding: latin-1 -*-\nprint('\xe4')",
    "carriage returns": "print(1)\r\nprint(2)\r\n",
    "compile warning": "print('\\d', 1 is 1)",
    "warning": "warnings.warn('here')",
    "stack of an error": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()",
    "last error": "atexit.register(lambda: print(sys.last_value, traceback.extract_tb(sys.last_traceback)))\n1 / 0",
    "nothing handled at exit": "atexit.register(lambda: print(sys.exc_info(), sys.excepthook))\n1 / 0",
    "names at exit": "atexit.register(lambda: print(sorted(globals())))",
    "names at exit after an exit": "atexit.register(lambda: print(sorted(globals())))\nsys.exit(4)",
    "names at exit after an error": "atexit.register(lambda: print(sorted(globals())))\n1 / 0",
    "exit": "sys.exit()",
    "exit -1": "sys.exit(-1)",
    "exit from within": "def f():\n    try:\n        quit(4)\n    finally:\n        print('finally')\nf()",
    "exit from an atexit function": "atexit.register(sys.exit, 5)",
    "text of an exit": "sys.exit('text\\nof two lines')",
    "subclass of SystemExit": "class Stop(SystemExit): pass\nraise Stop(6)",
    "os._exit": "print('lost', end=''); os._exit(7)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "os.abort()",
    "SIGINT": "atexit.register(print, 'at exit'); os.kill(os.getpid(), signal.SIGINT); signal.pause()",
    "interrupt": "try:\n    raise KeyboardInterrupt('enough')\nfinally:\n    print('finally', flush=True)",
    "a full disk": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')",
    "a full disk at the end": "sys.stdout = open('/dev/full', 'w'); print('lost')",
    "recursion": "def f(): f()\nsys.tracebacklimit = 3\nf()",
    "hook": "sys.excepthook = lambda *a: print(a[0], a[1].__traceback__ is a[2], traceback.extract_tb(a[2]))\n1 / 0",
    "hook that exits": "sys.excepthook = lambda *a: sys.exit(9)\n1 / 0",
    "frames": "import faulthandler\ntraceback.print_stack()\nfaulthandler.dump_traceback()",
    "warning below": "warnings.warn('deep', stacklevel=2)",
    "audit": "import audited",
    "module of its own folder": "import beside; print(beside.__file__)",
    "no main": "del sys.modules['__main__']\nprint('gone')",
    "syntax": "a b",
    "encoding that is wrong": "x = '\xff'",
}

# Other threads, warnings, logs and exit functions, in the order in which Python runs them.
SCRIPTS["threads, warnings and exit functions"] = """
import gc, logging

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

# Objects of the script's classes are pickled: in its main thread, in another one, at exit, and to the processes of each
# start method of multiprocessing.
TRAVELS = """
import atexit, multiprocessing, pickle, sys, threading

class Thing:
    def __init__(self, value): self.value = value
    def __eq__(self, other): return self.value == other.value

class Inner:
    class Deep: pass

def double(thing):
    return Thing(2 * thing.value)

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
            print(method, [type(thing) is Thing for thing in pool.map(double, [Thing(1), Thing(2)])], flush=True)
        child = context.Process(target=sys.exit, args=(7,))
        child.start()
        child.join()
        print(method, child.exitcode)
    atexit.register(copy, "atexit")
    threading.Thread(target=lambda: (threading.main_thread().join(), copy("afterwards"))).start()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A forkserver that many programs share."""
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


def interpret(server: Server, folder: Path, *words: str) -> tuple[int, str, str]:
    """What the interpreter itself does with these words: its exit code, and what it writes."""
    done = subprocess.run(
        ["python", *words],
        executable=sys.executable,
        cwd=folder,
        env=server.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        start_new_session=True,
        check=False,
    )
    return done.returncode, *(text.decode(errors="surrogateescape") for text in (done.stdout, done.stderr))


def run_alike(server: Server, folder: Path, *words: str) -> tuple[int, str, str]:
    """Run `python words` both ways, which must not differ but in addresses; the exit code, and what is written."""
    executed, forked = (
        (code, *(re.sub("0x[0-9a-f]{6,}", "0x", text) for text in texts))
        for code, *texts in (interpret(server, folder, *words), server.fork(folder, *words).end())
    )
    assert forked == executed
    return executed


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=list(SCRIPTS))
def test_a_script_runs_and_ends_alike(server: Server, tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.py").touch()
    imports = "" if text.startswith(("from __future__", "#")) else IMPORTS
    (tmp_path / "script.py").write_bytes((imports + text + "\n").encode("latin-1"))
    run_alike(server, tmp_path, "script.py", "a", "-m", "")


def test_a_script_that_is_run_as_a_module_behaves_alike(server: Server, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IMPORTS + SCRIPTS["threads, warnings and exit functions"])
    code, out, _ = run_alike(server, tmp_path, "-m", "script")
    assert (code, out.splitlines()[-1]) == (0, "registered first, called last")


@pytest.mark.parametrize("words", [("script.py",), ("-m", "script")], ids=" ".join)
def test_classes_of_the_script_can_be_pickled_to_other_processes(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The forkserver has imported multiprocessing already, as it does with torch."""
    with running(tmp_path, TRAVELS, modules=["multiprocessing.pool"]) as server:
        code, out, err = run_alike(server, tmp_path, *words)
    assert (code, err) == (0, "")
    assert "forkserver [True, True]\n" in out


@pytest.mark.parametrize(
    "words",
    [
        *("-m package a", "-m package.module", "-m package.failing", "-m package.nowhere", "-m nowhere"),
        *("-m package.module.nowhere", "-m .package", "-m beside.py", "-m space", "-m package.exiting"),
        *(
            "-m raising.module",
            "-m package.stopped",
            "-m json",
            "package a",
            "./package/",
            "space",
            "package/failing.py",
        ),
    ],
)
def test_modules_and_folders_run_alike(server: Server, tmp_path: Path, words: str) -> None:
    show = "import sys; print(sys.argv, sys.orig_argv, sys.path[:2], __name__, __file__, __spec__, __package__)\n"
    for name, text in {
        "beside": "",
        "space/nothing": "",
        "raising/__init__": "1 / 0",
        "package/__init__": "",
        "package/__main__": show,
        "package/module": show,
        "package/failing": "def f(): 1 / 0\nf()",
        "package/stopped": "raise KeyboardInterrupt",
        "package/exiting": "import atexit\natexit.register(lambda: print(sorted(globals())))\nraise SystemExit(3)",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    _, _, err = run_alike(server, tmp_path, *words.split())
    assert "worker_runtime" not in err


def compare_facts(server: Server, folder: Path, *words: str) -> dict[str, Any]:
    """Run the script that prints all that a process can find out about itself both ways; what it prints."""
    ended = interpret(server, folder, *words), server.fork(folder, *words).end()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 2
    executed, forked = (json.loads(out) for _, out, _ in ended)
    assert {key: value for key, value in forked.items() if value != executed[key]} == {}
    assert forked.keys() == executed.keys()
    return executed


@pytest.mark.parametrize(
    "words",
    [
        ("script.py", "a", "b c", "", "--flag=ä", "\udcff"),
        *(("./script.py",), ("{folder}/script.py",), ("with blanks/../script.py",), ("./with blanks/",)),
        *(("link.py",), ("linked/script.py",)),
        ("archive.zip", "-m", "a"),
        ("-m", "script", "a", "-m"),
        ("-m", "package", "a"),
        ("-m", "package.module"),
    ],
    ids=" ".join,
)
def test_a_forked_program_sees_the_path_and_arguments_of_an_executed_one(
    server: Server, tmp_path: Path, words: tuple[str, ...]
) -> None:
    for folder in ("with blanks", "package"):
        (tmp_path / folder).mkdir()
    for name in ("script", "with blanks/script", "with blanks/__main__", "package/__main__", "package/module"):
        shutil.copyfile(FACTS, tmp_path / f"{name}.py")
    (tmp_path / "link.py").symlink_to("with blanks/script.py")
    (tmp_path / "linked").symlink_to("with blanks")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(FACTS, "__main__.py")
    facts = compare_facts(server, tmp_path, *(word.format(folder=tmp_path) for word in words))
    assert facts["leads"] == [True, True]  # its session, and its process group
    assert facts["descriptors"] == ["0", "1", "2"]
    assert facts["a child's"] is facts["the kernel's"] is facts["is main thread"] is True


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONSAFEPATH": "1", "PYTHONPATH": "modules:/nowhere"},
        {"PYTHONHASHSEED": "7", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "2"},
        {"PYTHONIOENCODING": "latin-1:replace", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "", "LC_ALL": "C"},
        {"PYTHONDEVMODE": "1", "PYTHONUTF8": "1", "BLANKS": " a b ", "EMPTY": "", "LINES": "a\nb", "ODD": "\udcff"},
        {"PYTHONUTF8": "0", "PYTHONUNBUFFERED": "1"},
    ],
    ids=" ".join,
)
def test_the_environment_of_the_request_counts(tmp_path: Path, environment: dict[str, str]) -> None:
    with running(tmp_path, FACTS.read_text(), environment=environment) as server:
        facts = compare_facts(server, tmp_path, "script.py")
        run_alike(server, tmp_path, "-m", "script")
    assert environment.items() <= facts["environment"].items()


@contextmanager
def a_strange_process() -> Iterator[None]:
    """Within, this process has unusual settings that its children inherit."""
    limit, nice = resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0)
    mask = os.umask(0o027)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (777, limit[1]))
        os.setpriority(os.PRIO_PROCESS, 0, nice + 3)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        os.umask(mask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take niceness back")
def test_settings_that_a_process_hands_on_arrive(tmp_path: Path) -> None:
    with a_strange_process(), running(tmp_path, FACTS.read_text()) as server:
        facts = compare_facts(server, tmp_path, "script.py")
    assert (facts["nice"], facts["limits"]["RLIMIT_NOFILE"][0]) == (os.nice(0) + 3, 777)
    assert "Umask:\t0027" in facts["status"]
    assert facts["signals"][str(int(signal.SIGUSR1))] == "<Handlers.SIG_IGN: 1>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print('never')")
    return tmp_path


def test_most_programs_may_run_where_something_has_been_imported(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "tests").mkdir()
    (folder / "json.txt").touch()
    (folder / "json").mkdir()  # no package: Python continues to its own
    for words in (["script.py"], [f"{folder}/script.py", "a"], ["."], ["-m", "script"], ["-m", "nowhere"]):
        assert program.find_objection(words) == ""


@pytest.mark.parametrize("name", ["json.py", "json/__init__.py", "json.so"])
def test_a_module_of_the_program_s_own_is_not_hidden_by_one_that_has_been_imported(folder: Path, name: str) -> None:
    own = folder / name
    own.parent.mkdir(exist_ok=True)
    own.touch()
    objection = f"{own} would be imported before another json, which the forkserver has imported"
    for words in (["script.py"], ["-m", "script"], [str(folder)]):
        assert program.find_objection(words) == objection
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/script.py").touch()
    assert program.find_objection(["elsewhere/script.py"]) == ""


def test_a_module_imported_from_the_program_s_own_folder_is_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(program.__file__).parents[2]
    monkeypatch.chdir(home)
    assert program.find_objection(["-m", "nowhere"]) == ""


CANNOT = "the script cannot be compiled: "


@pytest.mark.parametrize(
    ("text", "words", "objection"),
    [
        (b"a b", "script.py", CANNOT + "SyntaxError"),
        (b"'\xff'", "script.py", CANNOT + "SyntaxError"),
        (b"'\0'", "script.py", CANNOT + "(SyntaxError|ValueError)"),
        (b"", "nowhere.py", CANNOT + "FileNotFoundError"),
        (b"", "pipe.py", "the script is no file, and can be read only once"),
        (b"", "-m json", "the forkserver has imported json already"),
        (rb"'\d'", "script.py", ""),  # the compiler's warning is left to the worker
    ],
)
def test_a_program_that_cannot_begin_in_the_forkserver_has_an_objection(
    folder: Path, text: bytes, words: str, objection: str
) -> None:
    (folder / "script.py").write_bytes(text)
    os.mkfifo(folder / "pipe.py")
    assert re.fullmatch(objection, program.find_objection(words.split()))
