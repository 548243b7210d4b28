"""The messages that docstrings give to Troubleshooting are those that a person sees."""

import ast
import errno
import importlib
import os
import pickle
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvdrun.accounts.page import _UNSEEN
from hvdrun.cluster.errors import JobEndedError
from hvdrun.cluster.pickling import read_error
from hvdrun.console.console import Console
from hvdrun.console.page import ALONE, Page, render_page
from hvdrun.errors import (
    BadValueError,
    DirectoryNotFoundError,
    HostFileError,
    HostLostError,
    HostsFailedError,
    ScriptNotFoundError,
)
from hvdrun.jobs.errors import JobNotFoundError, JobNotRespondingError
from hvdrun.jobs.guardian import MOST_KILLS, Attempts
from hvdrun.joining.joining_agent import _NO_JOB, JoiningAgent
from hvdrun.joining.token import TokenExistsError
from hvdrun.network.addresses import Restriction
from hvdrun.network.errors import NoAllowedAddressError
from hvdrun.options.languages import ConfigurationError
from hvdrun.options.request import refuse_missing_size
from hvdrun.tasks.messages import Body, Delivered
from hvdrun.testing.session import collect_arguments
from rendezvous.core.explanation import describe_pause, find_culprit
from rendezvous.core.facts import record_in_draining
from rendezvous.core.membership import begin
from rendezvous.core.messages import Joined, Refuse
from rendezvous.core.model import Endpoint, Generation, Policy, Slot, Worker
from rendezvous.core.outcome import (
    Blame,
    blame_host,
    blame_worker,
    describe_loss,
    run_short,
)
from rendezvous.wire.orders import OutputStream
from rendezvous.wire.tasks import find_unsendable
from tests.house.sources import ROOT
from worker_runtime.checkpoints.folder import CheckpointFolder
from worker_runtime.coordination.ordering import refusals
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Request, Signature
from worker_runtime.errors import NotInitializedError, ReplicasDifferError, SequencerError
from worker_runtime.startup.mpi_notice import explain

_WORKER = Worker(Slot("server1", 1), 1)
_FLOAT = Signature(Kind.ALLREDUCE, ("float32",), ((3,),), Reduction.SUM)
_ALLREDUCE = Request(0, "allreduce.loss", _FLOAT)


def test_each_message_in_a_docstring_reads_like_one_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    page = runpy.run_path(str(ROOT / "docs" / "errors.py"))
    docstrings = (ast.get_docstring(node) or "" for _, node in page["find_definitions"]())
    messages = [message for docstring in docstrings for message in page["list_messages"](docstring)]
    shown = [*show_ends(), *show_errors_of_hvdrun(), *show_mismatches(), *show_imports(monkeypatch)]
    shown += [*show_checkpoints(tmp_path), *show_snapshots(), *show_errors_of_workers(), ALONE, explain("2")]
    assert messages
    assert [each for each in messages if not any(map(make_pattern(each).match, shown))] == []


def make_pattern(message: str) -> re.Pattern[str]:
    """Of the messages that read like this one: any text may stand for a word in capitals."""
    return re.compile(re.sub("[A-Z]{2,}", ".+", re.escape(message)))


def show_ends() -> Iterator[str]:
    for returncode in (3, -9, -7, -11, -6, -15):
        page = Page(rank=1, worker=_WORKER, returncode=returncode, seconds=3.0)
        yield render_page(page).removeprefix("hvdrun: ")
        yield blame_worker(_WORKER, 1, returncode).reason
    other = replace(_WORKER, slot=Slot("server2", 0))
    for blame, loss in (Blame("it ended", (0,)), None), (Blame("x"), ("server2", "it was killed")), (Blame("x"), None):
        failed = replace(blame_worker(_WORKER, 1, 1), blame=blame)
        culprit, reason = find_culprit(failed, Generation(1, (other, _WORKER)), loss)
        yield render_page(Page(reason, culprit, rank=1, seconds=3.0)).removeprefix("hvdrun: ")
    yield f"{describe_pause(5.0)}{blame_host('server1', 'it was stopped').reason}"
    yield describe_loss(_WORKER, 1, -9, None)
    yield _UNSEEN.format("--check-nan")
    yield run_short(1, 2, 30.0, None).reason
    yield str(JobEndedError(blame_worker(_WORKER, 1, -9).reason, last_lines=("Killed",)))
    _, effects = record_in_draining(begin(Policy(2, 2)), blame_worker(_WORKER, 1, 3), Joined(_WORKER))
    yield from (effect.reason for effect in effects if isinstance(effect, Refuse))


def show_errors_of_hvdrun() -> Iterator[str]:
    yield str(HostsFailedError([HostLostError("server1", "it was stopped")], 2))
    yield str(BadValueError("-np", "a number", "two"))
    yield str(DirectoryNotFoundError(Path("/data")))
    yield str(ScriptNotFoundError("train.py", Path("/data")))
    yield str(NoAllowedAddressError({"server1": []}, None))
    yield str(NoAllowedAddressError({"server1": []}, Restriction(("eth7",))))
    yield str(ConfigurationError("job.yaml", "there is no key 'nq'"))
    yield str(ConfigurationError("job.yaml", "there is no key 'nq'", 3))
    yield from (str(HostFileError("hosts", line, "it is empty")) for line in (None, 3))
    yield str(TokenExistsError(Path("token"), Path("token.key")))
    yield _NO_JOB.format(600.0)
    yield from show_waiting()
    yield from show_lost_output()
    attempts = Attempts(lambda *_: None, 0.0)
    for _ in range(MOST_KILLS):
        attempts.note_kill(MOST_KILLS, 9)
    yield attempts.reason
    attempts.note_failure(is_stopping=True)
    yield attempts.reason
    yield from (str(JobNotRespondingError("c0ffee", 1.0, pid)) for pid in (12, 0))
    yield str(JobNotFoundError("job c0ffee"))
    yield str(JobNotFoundError("detached job", "runs"))
    yield catch(lambda: refuse_missing_size("hvdrun -np 2 python train.py"))
    yield find_unsendable("train", lambda: sys, lambda value: value is not sys and not callable(value))
    yield find_unsendable("the fixture 'lock'", object(), lambda _: False)
    item: Any = SimpleNamespace(obj=lambda capsys: capsys, funcargs={"capsys": None})
    yield catch(lambda: collect_arguments(item))
    body = Body(pickle.dumps(("", "its result cannot be sent", "", None)))
    yield str(read_error(Delivered(1, 1, failed=True, follows_another=False, body=body)))


def show_waiting() -> Iterator[str]:
    said: list[str] = []
    agent: Any = SimpleNamespace(_tell=said.append)
    JoiningAgent._wait_for(agent, "hvdrun at server1:29400 (no answer)")
    yield from said


def show_lost_output() -> Iterator[str]:
    said: list[str] = []
    find_loss = {OutputStream.STDOUT: OSError(errno.EIO, os.strerror(errno.EIO))}.get
    output, notice = SimpleNamespace(find_loss=find_loss), lambda text, _: said.append(text)
    console: Any = SimpleNamespace(output=output, files=None, notice=notice)
    for number in (errno.ENOSPC, errno.EIO):
        error = OSError(number, os.strerror(number))
        Console._report_failure(console, "the standard output", "the workers write", error)
    Console.report_lost_output(console)
    yield from said


def show_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    modules = ROOT / "hvdrun" / "shim" / "modules" / "horovod" / "_modules.py"
    find_module = runpy.run_path(str(modules))["find_module"]
    for absent in ("torch", "hvdrun"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, absent, None)
            yield catch(partial(find_module, absent, "horovod.torch"))
    yield f"hvdrun.torch cannot be imported: {sys.executable} has no torch; install it there"


def show_mismatches() -> Iterator[str]:
    for change in ({"shapes": ((4,),)}, {"dtypes": ("int32",)}, {"reduction": Reduction.AVERAGE}):
        other = _ALLREDUCE._replace(signature=replace(_FLOAT, **change))
        yield str(refusals.find_mismatch({0: _ALLREDUCE, 1: other}, {}))
    failed = Request(0, "allreduce.loss", Signature(Kind.FAIL, note="TypeError: a list"))
    yield str(refusals.find_mismatch({0: _ALLREDUCE, 1: failed}, {}))
    yield refusals.explain_shutdown(_ALLREDUCE, {1: "ended"}, {})
    yield refusals.explain_shutdown(_ALLREDUCE, {1: ""}, {})
    yield refusals.explain_join(Request(0, "broadcast.loss", Signature(Kind.BROADCAST)), [1])
    yield refusals.explain_deadlock({0: _ALLREDUCE, 1: _ALLREDUCE._replace(name="allreduce.other")}, [])


def show_checkpoints(path: Path) -> Iterator[str]:
    torch = importlib.import_module("torch")
    all_ranks = importlib.import_module("worker_runtime.checkpoints.all_ranks")
    folder = CheckpointFolder(path / "checkpoints")
    checkpoint = folder.write(lambda file: torch.save({}, file))
    yield catch(lambda: all_ranks._read(SimpleNamespace(from_checkpoint=None), path / "checkpoints"))
    checkpoint.write_bytes(b"0" * 100)
    yield catch(lambda: folder.find_newest(print))
    yield catch(lambda: all_ranks._check_shared(path, [1, 2]))
    (path / "file").touch()
    yield catch(CheckpointFolder(path / "file").check_writable)


def show_errors_of_workers() -> Iterator[str]:
    yield str(NotInitializedError())
    operations = importlib.import_module("worker_runtime.collectives.tensor_operation")
    yield catch(lambda: operations.check_tensor("allreduce.loss", [1]))
    sharding = importlib.import_module("worker_runtime.torch.sharding")
    yield sharding._PARTS.format("DistributedOptimizer", "DTensor")
    yield sharding._KEPT.format("DTensor")
    for has_ended in (False, True):
        yield SequencerError(Endpoint("server1", 1), "Connection refused", has_ended=has_ended).cause
    yield show_not_finite()
    yield from (str(ReplicasDifferError("fc.weight", step, 0)) for step in (0, 9))


def show_not_finite() -> str:
    """What --nan-is-error says."""
    torch = importlib.import_module("torch")
    parameter = torch.zeros(1)
    parameter.grad = torch.full((1,), float("nan"))
    check = importlib.import_module("worker_runtime.reduction.finite").FiniteCheck(raises=True)
    check.look_alone([importlib.import_module("worker_runtime.reduction.bucket").Entry(parameter, "fc.weight")], 0)
    return catch(check.settle)


def show_snapshots() -> Iterator[str]:
    snapshot = importlib.import_module("worker_runtime.torch.snapshot")
    shortage = importlib.import_module("worker_runtime.snapshots.shortage")
    snapshot_values = importlib.import_module("worker_runtime.torch.snapshot_values")
    yield snapshot_values.SHARDED.format("model", "DTensor")
    yield snapshot_values.HIDDEN.format("models", "list", "Linear")
    yield snapshot_values.TRAINED.format("weight")
    yield snapshot._CHANGED.format("scheduler")
    yield snapshot._UNBEGUN
    yield snapshot._SECOND
    yield snapshot._OTHER
    choice = importlib.import_module("worker_runtime.snapshots.choice")
    yield choice._OTHER_MODELS.format(0, 1)
    for place in ("the memory of this host", "memory.max of the control group"):
        yield shortage._SHORTAGE.format("2 GiB", f"{place} leaves 1 GiB")
    yield catch(lambda: importlib.import_module("worker_runtime.snapshots.process_group").find_group(2))
    description = importlib.import_module("worker_runtime.snapshots.contents").Packer().pack({"step": 1})[0]
    kept = snapshot.Snapshot(epoch=1)
    yield catch(lambda: kept._load(description, b""))
    other = snapshot.Snapshot(step=SimpleNamespace(state_dict=dict, load_state_dict=list))
    yield catch(lambda: other._load(description, b""))


def catch(call: Callable[[], object]) -> str:
    """The message of the exception that a call raises."""
    with pytest.raises((Exception, pytest.fail.Exception)) as raised:
        call()
    return str(raised.value)
