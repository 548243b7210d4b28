"""A worker's side of a function: how it is run, and what is written of it."""

import pickle
import signal
import sys
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import by_value
from worker_runtime.tasks import loop
from worker_runtime.tasks.loop import Answer, run, run_all

Modules = tuple[tuple[str, dict[str, bytes]], ...]
NOWHERE = Path("/nowhere/modules")


def do(
    function: Callable[..., object],
    *arguments: object,
    paths: tuple[str, ...] = (),
    anew: bool = False,
    modules: Modules = (),
    place: Path = NOWHERE,
) -> tuple[Any, Answer]:
    """Run a function as it comes from the program: what the program reads of it, and what else is reported."""
    task = BytesIO(pickle.dumps((paths, anew, False, False, modules)) + by_value.dump((function, arguments, {})))
    answer = run(task, place)
    with answer.file as file:
        file.seek(0)
        return pickle.load(file), answer  # noqa: S301 - our own


def test_the_result_is_written() -> None:
    value, answer = do(lambda x: x + 1, 41)
    assert (value, answer.failed) == (42, False)


def test_a_tensor_of_a_dtype_that_torch_pickles_badly_is_written() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.uint16, torch.float8_e4m3fn):
        value, answer = do(lambda given: given[0].t(), [torch.arange(6).reshape(2, 3).to(dtype)])
        assert (answer.failed, value.dtype, value.float().tolist()) == (False, dtype, [[0, 3], [1, 4], [2, 5]])

    class HeldError(Exception):
        pass

    def fail() -> None:
        raise HeldError(torch.ones(1, dtype=torch.uint16))

    (_, _, _, pickled), _ = do(fail)
    assert repr(pickle.loads(pickled)) == "HeldError(tensor([1], dtype=torch.uint16))"  # noqa: S301 - our own


def test_an_exception_is_written_with_its_traceback_from_the_function_on() -> None:
    def fail() -> None:
        raise KeyError("a")

    (kind, text, traceback, pickled), answer = do(fail)
    assert (answer.failed, kind, text) == (True, "KeyError", "'a'")
    assert "tasks/loop.py" not in traceback
    assert 'raise KeyError("a")' in traceback
    assert repr(pickle.loads(pickled)) == "KeyError('a')"  # noqa: S301 - our own


@pytest.mark.parametrize(("status", "code"), [(0, 1), (3, 3), ("why", 1), (None, 1)])
def test_an_exit_is_a_failure_with_its_code_and_does_not_end_its_reader(status: object, code: int) -> None:
    value, answer = do(sys.exit, status)
    assert (answer.failed, answer.exit_code) == (True, code)
    assert value[0::3] == ("SystemExit", None)


@pytest.mark.parametrize("is_elastic", [False, True])
def test_a_failure_that_an_elastic_job_may_survive_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_elastic: bool
) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", str(int(is_elastic)))
    for fail in (lambda: 1 / 0, threading.Lock, lambda: sys.exit(75)):
        do(fail)
    printed = capsys.readouterr().err
    assert ("ZeroDivisionError: division by zero\n" in printed) is is_elastic
    assert printed.endswith("it is a _thread.lock\n") is is_elastic
    assert "SystemExit" not in printed


def test_an_exception_that_cannot_be_sent_is_written_in_words() -> None:
    class OddError(Exception):
        def __init__(self) -> None:
            super().__init__(threading.Lock())

        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise OddError

    (kind, text, _, pickled), _ = do(fail)
    assert kind.endswith("OddError")
    assert (text, pickled) == ("(its message cannot be printed)", None)


def test_a_result_that_cannot_be_sent_is_named() -> None:
    (kind, text, *_), answer = do(lambda: {"a": [threading.Lock()]})
    assert (answer.failed, kind) == (True, "")
    assert (
        text == "what the function returned cannot be sent to another process: its item 'a', item 0 is a _thread.lock"
    )


def test_modules_are_found_where_the_program_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_program.py").write_text("X = 5\n", encoding="utf-8")
    assert do(lambda: __import__("beside_the_program").X, paths=(str(tmp_path),))[0] == 5
    assert sys.path[0] == str(tmp_path)


@pytest.mark.parametrize("here", [None, "X = 1\n", "X = 5\n"])
def test_modules_of_the_program_come_along_where_the_host_lacks_them_or_has_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str | None
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, place = tmp_path / "program", tmp_path / "place"
    sources = {"sent_along/__init__.py": b"", "sent_along/part.py": b"X = 5\n"}
    if here is not None:
        (folder / "sent_along").mkdir(parents=True)
        (folder / "sent_along/__init__.py").touch()
        (folder / "sent_along/part.py").write_text(here, encoding="utf-8")

    def use() -> tuple[int, str]:
        from sent_along.part import X, __file__  # type: ignore[import-not-found]  # noqa: PLC0415 - sent above

        return X, __file__

    try:
        value, _ = do(use, paths=(str(folder),), modules=((str(folder), sources),), place=place)
    finally:
        for name in [name for name in sys.modules if name.startswith("sent_along")]:
            del sys.modules[name]
    root = folder if here == "X = 5\n" else place / str(folder).lstrip("/")
    assert value == (5, str(root / "sent_along/part.py"))


def test_a_function_begins_anew_after_a_failure_and_a_failure_that_follows_another_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    engine = SimpleNamespace(has_failed=True)
    runtime = SimpleNamespace(shutdown=lambda: calls.append("shutdown"), is_initialized=True, engine=engine)
    monkeypatch.setitem(sys.modules, "worker_runtime.membership.runtime", SimpleNamespace(RUNTIME=runtime))  # type: ignore[misc]  # enough of a module
    assert not do(lambda: None, anew=True)[1].failed
    assert calls == ["shutdown"]
    assert do(lambda: 1 / 0)[1].follows_another
    engine.has_failed = False
    assert not do(lambda: 1 / 0)[1].follows_another


def test_ctrl_c_is_for_the_function_while_it_runs() -> None:
    with pytest.raises(KeyboardInterrupt):
        do(lambda: signal.raise_signal(signal.SIGINT))
    assert do(lambda: signal.getsignal(signal.SIGINT) is signal.default_int_handler)[0] is True


class Client:
    """Plays the agent: hands out tasks, and notes what comes back and in which order."""

    story: list[Any]
    tasks: list[bytes]

    def __init__(self, _: object) -> None:
        """See `TaskClient`."""

    def fetch(self, after: int, file: Any) -> int | None:
        """See `TaskClient`."""
        self.story.append(("fetch", after))
        if after == len(self.tasks):
            return None
        file.write(self.tasks[after])
        return after + 1

    def deliver(self, number: int, file: Any, *, failed: bool, follows_another: bool) -> None:
        """See `TaskClient`."""
        del file, follows_another
        self.story.append(("deliver", number, failed))

    def close(self) -> None:
        """See `TaskClient`."""
        self.story.append("close")


@pytest.mark.parametrize(("is_last", "code"), [(False, 0), (True, 75)])
def test_a_worker_whose_function_fails_leaves_the_group_when_that_is_known_and_fails_with_the_last_one(
    monkeypatch: pytest.MonkeyPatch, *, is_last: bool, code: int
) -> None:
    Client.story = []
    tasks = [(abs, (-1,), {}), (sys.exit, (75,), {})]
    Client.tasks = [pickle.dumps(((), False, is_last)) + by_value.dump(task) for task in tasks]
    monkeypatch.setattr(loop.Bootstrap, "read", lambda _: SimpleNamespace(socket=NOWHERE))
    monkeypatch.setattr(loop, "import_task_client", lambda: Client)
    monkeypatch.setattr(loop, "leave_job", lambda: Client.story.append("leave"))
    assert run_all() == code
    rest = ["close"] if is_last else ["leave", ("fetch", 2), "close"]
    assert Client.story == [
        *(("fetch", 0), "close"),
        *(("deliver", 1, False), ("fetch", 1), "close"),
        *(("deliver", 2, True), *rest),
    ]


def test_outside_of_a_job_the_module_refuses_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HVD_JOB", raising=False)
    assert run_all() == 2
    assert "runs only in the workers of hvdrun.run()" in capsys.readouterr().err
