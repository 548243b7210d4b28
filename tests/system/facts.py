"""A worker that prints, as one line of JSON, all that it can find out about itself, but for numbers of processes.

Run as a script, a module, a package, a folder or an archive. What differs from run to run by its nature is left out.
"""

import fcntl
import gc
import json
import locale
import logging
import multiprocessing.process
import os
import resource
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType

number: int = 1  # makes an entry in __annotations__

OWN_VARIABLES = ("HVD_JOB", "HVD_SOCKET", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
STATUS = ("Sig", "Shd", "Cap", "Cpus_allowed_list", "Umask", "Threads", "NoNewPrivs", "Seccomp", "CoreDumping")


def name(thing: object) -> str:
    """The repr of an object, without its address."""
    return repr(thing).partition(" at 0x")[0]


def describe_python(main: ModuleType) -> dict[str, object]:
    """What the interpreter says of itself and of the program."""
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "flags": str(sys.flags),
        "path": sys.path,
        "interpreter": [sys.executable, sys.prefix, sys.base_prefix, sys.warnoptions, sys._xoptions],
        "globals": list(vars(main))[:9],
        "main": [name(getattr(main, each, "missing")) for each in ("__file__", "__package__", "__cached__", "__doc__")],
        "spec": [name(main.__spec__), name(main.__builtins__), name(main.__annotations__)],
        "loader": [str(main.__loader__).partition(" at 0x")[0], getattr(main.__loader__, "path", None)],
        "is main": vars(main) is globals(),
        "code": sys._getframe().f_code.co_filename,
        "hooks": [name(hook) for hook in (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)],
        "finders": [name(finder) for finder in (*sys.meta_path, *sys.path_hooks)],
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "recursion": sys.getrecursionlimit(),
        "hash": hash("a") if "PYTHONHASHSEED" in os.environ else None,
        "warnings": str(warnings.filters),
        "logging": [logging.root.level, len(logging.root.handlers)],
        "text": [locale.setlocale(locale.LC_CTYPE), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "multiprocessing": [vars(multiprocessing.process)["ORIGINAL_DIR"], multiprocessing.current_process().name],
        "threads": [threading.active_count(), threading.current_thread().name, threading.main_thread().ident is None],
        "is main thread": threading.main_thread() is threading.current_thread(),
        "thread's number": threading.main_thread().native_id == os.getpid() == threading.get_native_id(),
    }


def describe_streams() -> dict[str, object]:
    """Standard input, output and error."""
    facts: dict[str, object] = {}
    for descriptor, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        facts[stream.name] = [
            *(
                stream.encoding,
                stream.errors,
                stream.line_buffering,
                getattr(stream, "write_through", None),
                stream.mode,
            ),
            *(stream.isatty(), stream.seekable(), stream.readable(), stream.writable(), stream.fileno()),
            *(name(stream), type(stream.buffer).__name__, stream is getattr(sys, f"__{stream.name.strip('<>')}__")),
            *(fcntl.fcntl(descriptor, fcntl.F_GETFL), fcntl.fcntl(descriptor, fcntl.F_GETFD)),
            str(Path(f"/proc/self/fd/{descriptor}").readlink()).partition(":")[0],
        ]
    return facts


def list_descriptors() -> list[str]:
    """All open ones, without those of libraries: libffi may keep its own file open where ctypes is imported."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    return [link.name for link in links if f" {link.readlink()}\n" not in mapped]


def describe_process() -> dict[str, object]:
    """What the kernel says of this process."""
    here = os.getpid()
    shown = subprocess.run(["ps", "-o", "args=,comm=", "-p", str(here)], capture_output=True, check=True).stdout
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return {
        "descriptors": sorted(list_descriptors()),
        "cwd": [str(Path.cwd()), str(Path("/proc/self/cwd").readlink())],
        "ps": shown.decode(),
        "cmdline": Path("/proc/self/cmdline").read_text(encoding="utf-8", errors="surrogateescape"),
        "comm": Path("/proc/self/comm").read_text(encoding="utf-8"),
        "exe": str(Path("/proc/self/exe").readlink()),
        "leads": [os.getsid(0) == here, os.getpgid(0) == here],
        "parent": Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8"),
        "signals": {number: name(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "status": [line for line in status if line.startswith(STATUS) and not line.startswith("SigQ")],
        "limits": {each: resource.getrlimit(getattr(resource, each)) for each in dir(resource) if "RLIMIT" in each},
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "oom": Path("/proc/self/oom_score_adj").read_text(encoding="ascii"),
    }


def describe_environment() -> dict[str, object]:
    """The variables, as this process, a child and the kernel know them, and whether these agree."""
    known = {each: value for each, value in os.environ.items() if each not in OWN_VARIABLES}
    child = subprocess.run(["env", "-0"], capture_output=True, check=True).stdout.split(b"\0")
    shown = Path("/proc/self/environ").read_bytes().split(b"\0")
    entries = [os.fsencode(f"{each}={value}") for each, value in os.environ.items()]
    return {
        "environment": known,
        "a child's": sorted(entry for entry in child if entry) == sorted(entries),
        "the kernel's": sorted(entry for entry in shown if entry) == sorted(entries),
        "getenv": [os.getenv("PATH"), (os.environb[b"PATH"]).decode()],
    }


if __name__ == "__main__":
    facts = {
        **describe_process(),
        **describe_python(sys.modules["__main__"]),
        **describe_streams(),
        **describe_environment(),
    }
    sys.stdout.write(f"{json.dumps(facts)}\n")
