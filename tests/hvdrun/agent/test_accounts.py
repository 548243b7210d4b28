"""What an agent tells of its workers' time."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvdrun.agent import accounts as module
from hvdrun.agent import watch
from hvdrun.agent.accounts import Accounts
from rendezvous.bootstrap import name_account_file
from rendezvous.core.model import Worker
from rendezvous.wire.accounts import AccountsReported
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.jobs import make_launches
from tests.hvdrun.agent.watching import LAUNCHES, WORKERS, watching
from tests.waiting import happen, in_loop

MEASURES = """
import os, pathlib, time
from rendezvous.bootstrap import Bootstrap
from worker_runtime.account import ACCOUNT
ACCOUNT.open(Bootstrap.read(os.environ).account_file)
for _ in range(3):
    ACCOUNT.begin_step()
    ACCOUNT.end_step()
pathlib.Path("worker").write_text(str(os.getpid()))
time.sleep(600)
"""


@alone
async def test_a_killed_worker_leaves_its_account() -> None:
    async with watching(sys.executable, "-c", MEASURES) as room:
        room.watch.launch(LAUNCHES[0])
        os.kill(await room.started("worker"), signal.SIGKILL)
        await room.ended()
        ((account, _),) = room.told
        assert (account.worker, account.is_measured, account.has_ended) == (WORKERS[0], True, True)
        assert account.steps == 3
        assert list(room.folder.glob("account.*")) == []


@alone
async def test_the_account_of_a_plain_program_is_reported_before_its_end() -> None:
    async with watching("true") as room:
        room.watch.launch(LAUNCHES[0])
        await room.ended()
        ((account, ends),) = room.told
        assert (account.worker, account.is_measured, account.has_ended, ends) == (WORKERS[0], False, True, 0)
        assert account.total_seconds


@alone
async def test_imports_before_a_worker_is_forked_belong_to_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float] = []
    begin = Accounts.begin

    def note(accounts: Accounts, worker: Worker, at: float) -> None:
        began.append(at)
        begin(accounts, worker, at)

    now = [1.0]
    monkeypatch.setattr(Accounts, "begin", note)
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    async with watching("true") as room:
        room.spawner.may_prepare.clear()
        room.watch.launch(LAUNCHES[0])
        now[0] = 2.0
        room.spawner.may_prepare.set()
        await room.ended()
        assert began == [1.0]


@in_loop
async def test_the_accounts_of_workers_that_run_are_reported_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.01)
    told: list[AccountsReported] = []
    accounts = Accounts(tmp_path / "agent.sock", told.append)
    workers = [launch.worker for launch in make_launches(150)]
    for worker in workers:
        accounts.begin(worker, 0.0)
    reporting = asyncio.create_task(accounts.report_often())
    await happen(lambda: len(told) >= 4)
    reporting.cancel()
    assert [len(message.accounts) for message in told[:4]] == [100, 50, 100, 50]
    assert not any(account.has_ended for message in told for account in message.accounts)


def test_a_folder_in_place_of_the_file_is_no_error(tmp_path: Path) -> None:
    told: list[AccountsReported] = []
    accounts = Accounts(tmp_path / "agent.sock", told.append)
    accounts.begin(WORKERS[0], 0.0)
    name_account_file(tmp_path / "agent.sock", WORKERS[0]).mkdir()
    accounts.end(WORKERS[0])
    ((account,),) = (message.accounts for message in told)
    assert not account.is_measured
