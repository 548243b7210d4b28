"""Which commands a forkserver can replace: plain Python commands, judged by their words and their source. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
_PROGRAM_FLAGS = ("-c", "-m")  # the next word names the program
_FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")

# Variables that a library reads when it is loaded: a forked script would set them too late.
_EARLY_PREFIXES = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "LD_", "TORCH_", "PYTORCH_", "ATEN_")
_EARLY_IN_SCRIPT = re.compile(rf"""["']({"|".join(_EARLY_PREFIXES)})[A-Z0-9_]+["']""".encode())
_THREADS = "OMP_NUM_THREADS"
_THREADS_SUFFIX = "_NUM_THREADS"

# A script of torch.distributed imports Snapshot alone, and does not call `init()`.
_NAMES_HVD = re.compile(rb"\b(worker_runtime|horovod|hvdrun\.(torch|mxnet)\b(?![ \t]+import[ \t]+Snapshot\b))\b")
_IMPORTS_MPI = re.compile(rb"^[ \t]*(from[ \t]+mpi4py\b|import[ \t][^#\n]*\bmpi4py\b)", re.MULTILINE)
_NAMES_FILE_STORE = re.compile(rb"""\binit_method[ \t]*=[ \t]*[rf]?["']file:""")
_WANTS_TORCH = re.compile(rb"\b(torch|worker_runtime|horovod|lightning|transformers|accelerate)\b")


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`python script.py ...` (script set) or `python -m module ...` (module set), without flags for the interpreter."""

    interpreter: str
    script: str | None
    module: str | None


def find_interpreter(command: tuple[str, ...]) -> str | None:
    """The Python that the command starts; None when it starts another program."""
    if _INTERPRETER.fullmatch(command[0].rpartition("/")[2]):
        return command[0]
    return None


def parse(command: tuple[str, ...]) -> PythonCommand | None:
    """Parse a plain Python command; None for any other command."""
    interpreter = find_interpreter(command)
    match command[1:]:
        case ("-m", module, *_) if interpreter is not None and not module.startswith("-"):
            return PythonCommand(interpreter, script=None, module=module)
        case (script, *_) if interpreter is not None and script and not script.startswith("-"):
            return PythonCommand(interpreter, script=script, module=None)
        case _:
            return None


def without_flags(command: tuple[str, ...]) -> tuple[str, ...]:
    """A Python command without the flags of the interpreter, as `-u` and `-X dev`; -c and -m stay."""
    interpreter, *words = command
    while words and words[0].startswith("-") and words[0] not in _PROGRAM_FLAGS:
        del words[: 2 if words[0] in _FLAGS_WITH_VALUE else 1]
    return interpreter, *words


def list_sources(command: PythonCommand) -> tuple[str, ...]:
    """The paths of the program's source, relative to the working directory, the likeliest first."""
    if command.script is not None:
        return command.script, f"{command.script}/__main__.py"
    path = (command.module or "").replace(".", "/")
    return f"{path}/__main__.py", f"{path}.py"


def find_early_variable(source: bytes) -> str | None:
    """A variable in the script that libraries read when they are loaded; None when there is none."""
    match = _EARLY_IN_SCRIPT.search(source)
    if match is None:
        return None
    return match[0].decode().strip("\"'")


def wants_torch(source: bytes) -> bool:
    """Whether the script names torch, or a package that imports it."""
    return _WANTS_TORCH.search(source) is not None


def names_hvd(source: bytes) -> bool:
    """Whether the script names a package that has `init()`."""
    return _NAMES_HVD.search(source) is not None


def imports_mpi(source: bytes) -> bool:
    """Whether the script imports mpi4py."""
    return _IMPORTS_MPI.search(source) is not None


def names_file_store(source: bytes) -> bool:
    """Whether the script lets torch.distributed meet in a file."""
    return _NAMES_FILE_STORE.search(source) is not None


def find_file_url(command: tuple[str, ...]) -> str | None:
    """The first `file://...` among the words of any command, also behind a name and `=`; None where there is none."""
    values = (value for word in command[1:] for value in (word, word.partition("=")[2]))
    return next((value for value in values if value.startswith("file://")), None)


def find_thread_variable(environment: Mapping[str, str]) -> str | None:
    """A variable that sets a number of threads which cannot be set after the fork; None where there is none.

    A valid OMP_NUM_THREADS can be set after the fork.
    """
    for name, value in environment.items():
        if name == _THREADS:
            if not value.isdecimal() or int(value) < 1:
                return name
        elif name.endswith(_THREADS_SUFFIX):
            return name
    return None
