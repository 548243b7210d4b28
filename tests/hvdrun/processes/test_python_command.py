"""Which commands a forkserver may stand in for."""

import pytest

from hvdrun.processes import python_command
from hvdrun.processes.python_command import PythonCommand


@pytest.mark.parametrize("interpreter", ["python", "python3", "python3.11", "/opt/a b/bin/python", "./python3"])
def test_a_plain_script_is_recognised(interpreter: str) -> None:
    assert python_command.parse((interpreter, "train.py", "-u", "--lr")) == PythonCommand(
        interpreter, script="train.py", module=None
    )


def test_a_module_is_recognised() -> None:
    assert python_command.parse(("python", "-m", "a.b", "-m")) == PythonCommand("python", script=None, module="a.b")


OTHERS = (
    "python|python |python -|python -c pass|python -u train.py|python -m|python -m -u|python -mtrain|python2 train.py|"
    "python3.11-dbg train.py|pypy3 train.py|bash train.sh|./train.py python"
)


@pytest.mark.parametrize("command", OTHERS.split("|"))
def test_other_commands_are_not_parsed(command: str) -> None:
    assert python_command.parse(tuple(command.split(" "))) is None


def test_a_program_s_text_is_looked_for_where_python_finds_it_first() -> None:
    script, module = PythonCommand("python", "a/b", None), PythonCommand("python", None, "a.b")
    assert python_command.list_sources(script) == ("a/b", "a/b/__main__.py")
    assert python_command.list_sources(module) == ("a/b/__main__.py", "a/b.py")


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        (b'os.environ["OMP_NUM_THREADS"] = "2"', "OMP_NUM_THREADS"),
        (b"os.putenv('MKL_DYNAMIC', '1')", "MKL_DYNAMIC"),
        (b'environ.update({"LD_PRELOAD": x})', "LD_PRELOAD"),
        (b"os.environ['HOROVOD_RANK'], os.environ['RANK']", None),
        (b"# OMP_NUM_THREADS is left alone", None),
        (b"os.environ['WORLD_SIZE'] + '\xff'", None),
    ],
)
def test_a_script_that_names_what_libraries_read_early_is_noticed(source: bytes, variable: str | None) -> None:
    assert python_command.find_early_variable(source) == variable


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (b"import torch", True),
        (b"import horovod.torch as hvd", True),
        (b"from worker_runtime import torch", True),
        (b"import torchvision, my_torch, numpy", False),
        (b"print('hello')", False),
    ],
)
def test_torch_is_wanted_by_a_script_that_names_it(source: bytes, wanted: bool) -> None:
    assert python_command.wants_torch(source) is wanted


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({"OMP_NUM_THREADS": "3", "PATH": "/bin"}, None),
        ({}, None),
        ({"OMP_NUM_THREADS": "4,2"}, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": ""}, "OMP_NUM_THREADS"),
        ({"MKL_NUM_THREADS": "1"}, "MKL_NUM_THREADS"),
    ],
)
def test_threads_that_cannot_be_set_afterwards_are_noticed(environment: dict[str, str], variable: str | None) -> None:
    assert python_command.find_thread_variable(environment) == variable


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        (("python", "x.py"), "python"),
        (("/opt/bin/python3.11", "-u", "x.py"), "/opt/bin/python3.11"),
        (("python3",), "python3"),
        (("sh", "-c", "python x.py"), None),
        (("./train",), None),
    ],
)
def test_the_python_that_a_command_starts_is_its_first_word(command: tuple[str, ...], interpreter: str | None) -> None:
    assert python_command.find_interpreter(command) == interpreter


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (b"import horovod.torch as hvd", True),
        (b"from worker_runtime import torch", True),
        (b"import hvdrun.torch as hvd", True),
        (b"from hvdrun.torch import Snapshot", False),
        (b"import torch", False),
    ],
)
def test_a_script_that_names_what_has_init_is_known(source: bytes, *, named: bool) -> None:
    assert python_command.names_hvd(source) is named


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("python train.py --dist-url file:///x", "file:///x"),
        ("python train.py --dist-url=file:///x --data file:///y", "file:///x"),
        ("sh run.sh dist.url=file:///x", "file:///x"),
        ("sh run.sh --note see:file:///y", None),
        ("python train.py --dist-url env://", None),
    ],
    ids=["a word", "behind a flag", "behind a name", "within a word", "the variables"],
)
def test_a_file_url_is_found_among_the_words(words: str, found: str | None) -> None:
    assert python_command.find_file_url(tuple(words.split())) == found
