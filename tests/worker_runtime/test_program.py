"""A program run within an interpreter, beside the same one run by the interpreter itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from worker_runtime import program

# What the forkserver's child does, without its parent.
DRIVER = """
import sys
if not sys.flags.safe_path: del sys.path[0]
from worker_runtime import program
loaded = program.load(sys.argv[1:])
try:
    loaded.run(*loaded.arguments)
except SystemExit:
    raise
except BaseException:
    loaded.fail()
    raise
loaded.end()
"""

SCRIPTS = {
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
    "names after a failing hook": "atexit.register(lambda: print(sorted(globals())))\nsys.excepthook = 1\n2 / 0",
    "text of an exit": "sys.exit('text\\nof two lines')",
    "object of an exit": "sys.exit([1])",
    "subclass of SystemExit": "class Stop(SystemExit): pass\nraise Stop(6)",
    "interrupt": "print('a', flush=True)\nraise KeyboardInterrupt",
    "subclass of KeyboardInterrupt": "class Stop(KeyboardInterrupt): pass\nraise Stop",
    "generator exit": "raise GeneratorExit('x')",
    "group": "raise BaseExceptionGroup('g', [KeyboardInterrupt(), ValueError(1)])",
    "error from another": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise OSError(2, 'no') from error",
    "no context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError from None",
    "notes": "error = ValueError('v')\nerror.add_note('note')\nraise error",
    "no traceback": "raise ValueError('v').with_traceback(None)",
    "error that was raised before": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    error = e\nraise error",
    "limit of tracebacks": "sys.tracebacklimit = 0\n1 / 0",
    "unprintable error": "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd",
    "hook": "sys.excepthook = lambda *a: print(a[0], a[1].__traceback__ is a[2], traceback.extract_tb(a[2]))\n1 / 0",
    "hook that looks": "sys.excepthook = lambda *a: print(sys.exc_info(), sys.last_traceback is a[2])\n1 / 0",
    "hook that exits": "sys.excepthook = lambda *a: sys.exit(9)\n1 / 0",
    "hook that fails": "def hook(*_): {}['a']\nsys.excepthook = hook\n1 / 0",
    "hook that is interrupted": "def hook(*_): raise KeyboardInterrupt\nsys.excepthook = hook\n1 / 0",
    "hook that is nothing": "sys.excepthook = None\n1 / 0",
    "no stderr": "sys.stderr = None\n1 / 0",
    "stdout that fails": "sys.stdout = open('/dev/full', 'w')\nprint('lost')",
    "audit": "import audited",
    "module of its own folder": "import beside; print(beside.__file__)",
    "no main": "del sys.modules['__main__']\nprint('gone')",
}
IMPORTS = "import atexit, inspect, os, sys, traceback, warnings\n"


def run(directory: Path, *command: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command that starts with this interpreter."""
    done = subprocess.run(
        command,
        executable=sys.executable,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=30,
        check=False,
    )
    out, err = (re.sub("0x[0-9a-f]{6,}", "0x", text) for text in (done.stdout, done.stderr))
    return done.returncode, out, err


def run_alike(directory: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """Run `python words` by the interpreter and within one, which must not differ."""
    own = run(directory, "python", *words, environment=environment)
    within = run(directory, "python", "-c", DRIVER, "python", *words, environment=environment)
    assert within == own
    return own


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=list(SCRIPTS))
def test_a_script_runs_as_ever(tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.py").touch()
    imports = "" if text.startswith(("from __future__", "#")) else IMPORTS
    (tmp_path / "script.py").write_bytes((imports + text + "\n").encode("latin-1"))
    run_alike(tmp_path, "script.py", "a", "-m", "")


@pytest.mark.parametrize("environment", [{"PYTHONSAFEPATH": "1"}, {"PYTHONOPTIMIZE": "2"}, {"PYTHONUTF8": "0"}])
def test_the_interpreter_s_own_variables_count(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "script.py").write_text(
        "'doc'\nimport sys\nassert sys.flags.optimize < 2, 'not run'\nprint(__doc__, sys.path)"
    )
    run_alike(tmp_path, "script.py", **environment)
    run_alike(tmp_path, "-m", "script", **environment)


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "package", "a"),
        ("-m", "package.module"),
        ("-m", "package.failing"),
        ("-m", "package.nowhere"),
        ("-m", "nowhere"),
        ("-m", "package.module.nowhere"),
        ("-m", ".package"),
        ("-m", "beside.py"),
        ("-m", "space"),
        ("-m", "package.exiting"),
        ("package", "a"),
        ("./package/",),
        ("space",),
    ],
    ids=" ".join,
)
def test_modules_and_folders_run_as_ever(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "space").mkdir()
    (tmp_path / "beside.py").touch()
    show = "import sys; print(sys.argv, sys.orig_argv, sys.path[:2], __name__, __file__, __spec__, __package__)\n"
    for name, text in {
        "__init__": "",
        "__main__": show,
        "module": show,
        "failing": "def f(): 1 / 0\nf()",
        "exiting": "import atexit\natexit.register(lambda: print(sorted(globals())))\nraise SystemExit(3)",
    }.items():
        (tmp_path / "package" / f"{name}.py").write_text(text)
    run_alike(tmp_path, *words)


def test_what_cannot_be_run_is_left_to_be_said_by_the_interpreter(tmp_path: Path) -> None:
    for text in (b"a b", b"\xff", b"x = '\0'", b"  x\ny"):
        (tmp_path / "script.py").write_bytes(text)
        code, out, err = run(tmp_path, "python", "-c", DRIVER, "python", "script.py", environment={})
        assert (code, out) == (1, "")
        assert "in load" in err


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
    (folder / "json").mkdir()  # no package: Python goes on to its own
    for words in (["script.py"], [f"{folder}/script.py", "a"], ["."], ["-m", "script"], ["-m", "nowhere"]):
        assert program.find_objection(words) == ""


@pytest.mark.parametrize("name", ["json.py", "json/__init__.py", "json.so"])
def test_a_module_of_the_program_s_own_is_not_hidden_by_one_that_has_been_imported(folder: Path, name: str) -> None:
    own = folder / name
    own.parent.mkdir(exist_ok=True)
    own.touch()
    objection = f"{own} stands before another json, which the forkserver has imported"
    for words in (["script.py"], ["-m", "script"], [str(folder)]):
        assert program.find_objection(words) == objection
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/script.py").touch()
    assert program.find_objection(["elsewhere/script.py"]) == ""


def test_what_stands_in_both_places_is_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(program.__file__).parents[1]
    monkeypatch.chdir(home)
    assert program.find_objection(["examples/../setup_free.py"]).startswith("the script cannot be compiled")
    assert program.find_objection(["-m", "nowhere"]) == ""


def test_a_module_that_has_been_imported_is_not_run_a_second_time(folder: Path) -> None:
    assert program.find_objection(["-m", "json"]) == "the forkserver has imported json already"
    assert folder.exists()


@pytest.mark.parametrize(
    ("text", "error"), [(b"a b", "SyntaxError"), (b"'\xff'", "SyntaxError"), (b"'\0'", "SyntaxError|ValueError")]
)
def test_a_script_that_cannot_be_compiled_is_an_objection(folder: Path, text: bytes, error: str) -> None:
    (folder / "script.py").write_bytes(text)
    assert re.fullmatch(f"the script cannot be compiled: ({error})", program.find_objection(["script.py"]))
    assert program.find_objection(["nowhere.py"]) == "the script cannot be compiled: FileNotFoundError"


def test_a_pipe_is_not_read_in_vain(folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")
    assert program.find_objection(["pipe.py"]) == "the script is no file, and can be read only once"


def test_a_warning_of_the_compiler_is_left_to_the_worker(folder: Path) -> None:
    (folder / "script.py").write_text(r"'\d'")
    assert program.find_objection(["script.py"]) == ""
