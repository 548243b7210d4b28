"""Functions become bytes, whatever module they are from; what comes back is raised as it was there."""

import importlib
import pickle
import subprocess
import sys
import sysconfig
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import pytest

from hvdrun.cluster.errors import RemoteError, RemoteTraceback, UnsendableError
from hvdrun.cluster.pickling import can_be_found, collect_modules, list_own_folders, pack, read_error, read_result
from hvdrun.tasks.messages import INLINE_BYTES, Body, Delivered

LOCK = threading.Lock()
READ = "import pickle, sys; pickle.load(sys.stdin.buffer); f, a, k = pickle.load(sys.stdin.buffer); print(f(*a, **k))"


def read_all(body: Body) -> bytes:
    with body.open() as file:
        return file.read()


def deliver(*failure: object) -> Delivered:
    return Delivered(3, 1, failed=True, follows_another=False, body=Body(pickle.dumps(failure)))


def run_elsewhere(data: bytes) -> str:
    """What a Python that finds nothing of the tests prints of a task."""
    run = subprocess.run([sys.executable, "-P", "-c", READ], input=data, capture_output=True, check=True, cwd="/")
    return run.stdout.decode().strip()


def test_a_function_of_a_module_that_cannot_be_imported_is_pickled_by_value(tmp_path: Path) -> None:
    path = tmp_path / "somewhere.py"
    path.write_text("K = 3\nclass Part:\n    x = 4\ndef add(y):\n    return K + y + Part.x\n", encoding="utf-8")
    spec = spec_from_file_location("unknown_name", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    try:
        assert not can_be_found(module)
        body = pack(module.add, (1,), {}, begins_anew=False, is_last=True)
    finally:
        del sys.modules[module.__name__]
    assert run_elsewhere(read_all(body)) == "8"
    assert module.__name__ not in cloudpickle.list_registry_pickle_by_value()


@pytest.mark.parametrize("hides", [False, True])
def test_a_function_keeps_the_name_of_its_file(monkeypatch: pytest.MonkeyPatch, *, hides: bool) -> None:
    """Also where cloudpickle hides it, as 3.1.3 does."""
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    def hide(code: CodeType) -> tuple[object, tuple[object, ...]]:
        make, arguments = reduce(code)
        return make, tuple("<dynamic-code>" if each == code.co_filename else each for each in arguments)

    if hides:
        monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, CodeType, hide)
    body = pack(lambda: sys._getframe().f_code.co_filename, (), {})
    assert run_elsewhere(read_all(body)) == __file__


def test_a_module_that_the_caller_sends_by_value_is_sent_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("nowhere_at_all")
    module.__file__ = "/nowhere/at_all.py"
    exec("def add(y):\n    return 3 + y\n", module.__dict__)  # noqa: S102 - our own
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    body = pack(module.add, (1,), {})
    cloudpickle.unregister_pickle_by_value(module)
    assert run_elsewhere(read_all(body)) == "4"


def test_modules_that_workers_have_are_pickled_by_name() -> None:
    assert can_be_found(subprocess)
    assert can_be_found(sys)
    assert b"subprocess" in read_all(pack(subprocess.run, (), {}, begins_anew=False, is_last=True))


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_a_tensor_of_a_dtype_that_torch_pickles_badly_can_be_sent(name: str) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(2, 2).to(getattr(torch, name))
    data = read_all(pack(lambda given: (given.dtype, given.float().tolist()), (weight,), {}))
    assert run_elsewhere(data) == f"(torch.{name}, [[1.0, 1.0], [1.0, 1.0]])"


def test_many_bytes_lie_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    body = pack(len, (b"x" * (3 * INLINE_BYTES),), {}, begins_anew=False, is_last=True)
    assert body.data is None
    assert list(tmp_path.iterdir()) == []
    assert run_elsewhere(b"".join(body.pieces())) == str(3 * INLINE_BYTES)
    body.close()


def test_an_object_that_cannot_be_sent_is_named() -> None:
    def use() -> object:
        return LOCK

    with pytest.raises(
        UnsendableError, match=r"^use cannot be sent to another process: its global variable `LOCK` is a _th"
    ):
        pack(use, (), {}, begins_anew=False, is_last=True)
    with pytest.raises(
        UnsendableError, match=r"^the argument 'end' of print cannot be sent .*: its item 0 is a _thread"
    ):
        pack(print, (1,), {"end": [LOCK]}, begins_anew=False, is_last=True)


@pytest.mark.parametrize("task", [(3, (), {}), (print, 2, {}), (print, (), 2)])
def test_an_object_that_is_no_function_with_arguments_is_refused_before_a_job_starts(task: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"write run\(train, args=\(2,\)\) for train\(2\)"):
        pack(*task)


@pytest.mark.parametrize(("name", "notes"), [("pickle", 1), ("unknown_module", 0), (None, 0)])
def test_a_module_that_a_worker_lacks_is_reported_with_a_remedy(name: str | None, notes: int) -> None:
    error = read_error(deliver("ModuleNotFoundError", "", "", pickle.dumps(ModuleNotFoundError("none", name=name))))
    found = getattr(error, "__notes__", [])
    assert len(found) == notes
    assert all("Install it on the host of rank 3" in note for note in found)


def test_an_exception_is_raised_itself_with_the_traceback_of_its_worker_as_cause() -> None:
    error = read_error(deliver("KeyError", "'a'", "Traceback: line 7\n", pickle.dumps(KeyError("a"))))
    assert isinstance(error, KeyError)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "rank 3:\nTraceback: line 7" in str(error.__cause__)


@pytest.mark.parametrize("pickled", [None, b"no pickle", pickle.dumps("no exception"), pickle.dumps(SystemExit(3))])
def test_an_exception_that_cannot_be_unpickled_becomes_a_remote_error(pickled: bytes | None) -> None:
    error = read_error(deliver("SystemExit", "3", "there", pickled))
    assert isinstance(error, RemoteError)
    assert (str(error), error.rank, error.kind) == ("SystemExit: 3", 3, "SystemExit")


def test_a_result_that_cannot_be_sent_names_its_rank() -> None:
    error = read_error(deliver("", "what the function returned cannot be sent", "", None))
    assert isinstance(error, UnsendableError)
    assert str(error).startswith("rank 3: what the function returned cannot be sent; ")


class Explosive:
    """Can be pickled, but not read."""

    def __reduce__(self) -> tuple[object, ...]:
        return explode, ()


def explode() -> NoReturn:
    raise LookupError("boom")


def test_a_result_that_cannot_be_read_here_names_its_rank() -> None:
    with pytest.raises(RemoteError, match="the result of rank 3 cannot be read here: boom"):
        read_result(Delivered(3, 1, failed=False, follows_another=False, body=Body(cloudpickle.dumps(Explosive()))))


def test_the_programs_own_modules_are_whole_packages_that_it_has_imported_and_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, other = tmp_path / "beside", tmp_path / "other"
    for name in (
        "beside/lazily.py",
        "other/our_package/__init__.py",
        "other/our_package/deep/part.py",
        "other/not_ours.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n", encoding="utf-8")
    (other / "our_package/broken.py").symlink_to("/nowhere")
    monkeypatch.chdir(beside)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(sys, "path", ["", str(other), *sys.path])
    importlib.import_module("our_package")
    try:
        found = {(folder, name): source for folder, sources in collect_modules() for name, source in sources.items()}
    finally:
        del sys.modules["our_package"]
    assert {key: source.decode() for key, source in found.items() if key[0] in {str(beside), str(other)}} == {
        (str(beside), "lazily.py"): "# beside/lazily.py\n",
        (str(other), "our_package/__init__.py"): "# other/our_package/__init__.py\n",
        (str(other), "our_package/deep/part.py"): "# other/our_package/deep/part.py\n",
    }
    assert not [name for _, name in found if name.startswith(("hvdrun/", "worker_runtime/"))]


def test_folders_of_a_python_installation_are_not_own_folders(tmp_path: Path) -> None:
    paths = sysconfig.get_paths()
    assert list_own_folders([str(tmp_path), paths["stdlib"], paths["purelib"], "/nowhere", str(tmp_path)]) == [tmp_path]
