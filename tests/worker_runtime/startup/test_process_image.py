"""A worker as a process: how it looks, what it leaves to its children, and with whom it ends."""

import json
import multiprocessing.process
import multiprocessing.util
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Listener
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from worker_runtime.errors import InitializationError
from worker_runtime.membership.children import check_member, keep_sockets_below, remove_member, set_member
from worker_runtime.startup import process_image
from worker_runtime.startup.parent_process import make_arguments


def test_a_refusal_of_the_kernel_to_show_another_command_line_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What /proc shows where the kernel allows it is in `test_program.py`."""
    monkeypatch.setattr(process_image, "_PR_SET_MM", 0)
    assert not process_image.show(["python"], {})


ENDING = """
import ctypes, sys
from worker_runtime.startup import process_image

libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p
def register(text):
    libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(text)), None)

register(b"registered before")
process_image.end_without_inherited_destructors()
register(b"registered after")
libc.printf(b"in a buffer of C\\n")
print("in a buffer of Python")
sys.exit(3)
"""


@pytest.mark.parametrize("preload", ["", "libm.so.6"])
def test_destructors_from_before_the_fork_do_not_run_at_exit(preload: str) -> None:
    environment = {**os.environ, **({"LD_PRELOAD": preload} if preload else {})}
    run = subprocess.run(
        [sys.executable, "-c", ENDING], check=False, capture_output=True, text=True, timeout=60, env=environment
    )
    assert run.returncode == 3, run.stderr
    # A preloaded library may need its destructors, so all of them run.
    expected = {"registered after", "in a buffer of C", "in a buffer of Python"}
    assert set(run.stdout.splitlines()) == expected | ({"registered before"} if preload else set())


def test_a_member_may_join_again() -> None:
    environment: dict[str, str] = {}
    check_member(environment, "job 1, slot 2")
    set_member(environment, "job 1, slot 2", 3)
    check_member(environment, "job 1, slot 2")
    remove_member(environment)
    assert environment == {}


def test_a_child_is_refused_until_its_parent_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    set_member(environment, "job 1, slot 2", 3)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(InitializationError, match=rf"its parent process {parent} is already rank 3 of the"):
        check_member(environment, "job 1, slot 2")
    check_member(environment, "job 2, slot 2")  # a job inside the job
    remove_member(environment)
    assert environment, "a child has removed its parent's mark"
    monkeypatch.undo()  # as the parent
    remove_member(environment)
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    check_member(environment, "job 1, slot 2")


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a test this process has not got a place for its sockets yet."""
    monkeypatch.setattr(multiprocessing.process.current_process(), "_config", {})


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path short enough for a socket below it."""
    with TemporaryDirectory(prefix="hvt-") as name:
        yield Path(name)


def find_place() -> str | None:
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]  # private, and the only place
    return config.get("tempdir")  # type: ignore[no-any-return]  # a str or None


def test_sockets_of_the_process_are_in_a_folder_of_this_user_alone(folder: Path) -> None:
    keep_sockets_below(folder)
    keep_sockets_below(folder)
    place = folder / f"mp-{os.getpid()}"
    assert multiprocessing.util.get_temp_dir() == str(place)
    assert place.stat().st_mode & 0o777 == 0o700
    with Listener(family="AF_UNIX") as listener:
        assert Path(str(listener.address)).parent == place


def test_the_program_s_own_settings_stay(folder: Path) -> None:
    multiprocessing.process.current_process()._config["tempdir"] = "mine"  # type: ignore[attr-defined]  # private, and the only place
    keep_sockets_below(folder)
    assert find_place() == "mine"
    assert not list(folder.iterdir())


def test_the_longest_path_of_a_socket_is_used_and_a_longer_one_is_not(folder: Path) -> None:
    rest = 107 - len(f"{folder}//mp-{os.getpid()}/listener-12345678")
    (longer := folder / ("x" * (rest + 1))).mkdir()
    keep_sockets_below(longer)
    assert find_place() is None
    (longest := folder / ("x" * rest)).mkdir()
    keep_sockets_below(longest)
    with Listener(family="AF_UNIX") as listener:
        assert len(str(listener.address)) == 107


def test_without_a_folder_multiprocessing_has_its_own_place(folder: Path) -> None:
    keep_sockets_below(None)
    keep_sockets_below(folder / "gone")
    assert find_place() is None
    assert not list(folder.iterdir())


COUNTS = """
import json, sys
from worker_runtime.startup import process_image
{imports}
{then}
counts = [torch.get_num_threads() if "torch" in sys.modules else None]
from threadpoolctl import threadpool_info
print(json.dumps(counts + sorted([pool["internal_api"], pool["num_threads"]] for pool in threadpool_info())))
"""


def count(imports: str, environment: dict[str, str], then: str = "") -> list[object]:
    """The threads of torch (None: not imported), OpenMP and BLAS in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    script = COUNTS.format(imports=imports, then=then)
    found: list[object] = json.loads(subprocess.check_output([sys.executable, "-c", script], env=kept | environment))
    return found


@pytest.mark.parametrize("wanted", [2, *(pytest.param(each, marks=pytest.mark.nightly) for each in (None, 64))])
def test_as_many_threads_are_used_as_if_set_before_the_imports(wanted: int | None) -> None:
    imports = "import numpy, scipy.linalg, torch"
    before = count(imports, {} if wanted is None else {"OMP_NUM_THREADS": str(wanted)})
    assert count(imports, {"OMP_NUM_THREADS": "1"}, f"process_image.set_thread_counts({wanted})") == before
    assert len(before) == 4


def test_a_thread_count_of_one_is_kept() -> None:
    assert count("import numpy", {"OMP_NUM_THREADS": "1"}, "process_image.set_thread_counts(1)") == [
        None,
        ["openblas", 1],
    ]


def test_a_module_that_was_not_imported_is_left_alone() -> None:
    assert count("", {"OMP_NUM_THREADS": "1"}, "process_image.set_thread_counts(3)") == [None]


def test_a_child_finds_its_module_on_the_parent_s_path_and_json_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "says.py").write_text("import sys\nprint(__name__, sys.argv)\n")
    (tmp_path / "json.py").write_text("raise ImportError('it hides the one of Python')")
    monkeypatch.syspath_prepend(tmp_path)
    command = [sys.executable, "-P", "-c", *make_arguments("says", "one", "two")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", check=True)
    assert finished.stdout == f"__main__ ['{tmp_path / 'says.py'}', 'one', 'two']\n"


def test_a_child_whose_parent_has_gone_before_it_looks_ends() -> None:
    boot, path, _, *rest = make_arguments("code")
    with subprocess.Popen([sys.executable, "-P", "-c", boot, path, "0", *rest], stdin=subprocess.PIPE) as child:
        assert child.wait(60) == 0
