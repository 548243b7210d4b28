"""A script is asked again and again: only changes are reported. Names are looked up once each, and delay no host."""

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from hvdrun.hosts import discovery, reach
from hvdrun.hosts.discovery import Discovery, DiscoveryPoller, Lookups, describe_changes
from hvdrun.hosts.discovery_script import DiscoveryFailedError, DiscoveryImpossibleError
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.hosts import HostList, parse_hosts
from hvdrun.spec.limits import Elasticity
from rendezvous.core.model import Host
from tests.hvdrun.specs import build_spec
from tests.waiting import LIMIT_SECONDS, happen, in_loop

A = HostList((Host("a", 1),), {})
AB = HostList((Host("a", 1), Host("b", 2)), {})
BA = HostList((Host("b", 2), Host("a", 1)), {})
FAILS = DiscoveryFailedError("exit code 1")
LATE = DiscoveryFailedError("it took longer than 30 s")
HOPELESS = DiscoveryFailedError("exit code 127: not found", is_hopeless=True)
PATIENCE_SECONDS = 0.05


class Slow:
    """An answer that comes when its slowness has been reported, or after that would have been due."""

    def __init__(self, answer: HostList | DiscoveryFailedError) -> None:
        self.answer = answer


class Script:
    """Gives these answers, and then says that there are no more."""

    def __init__(self, answers: Iterable[HostList | DiscoveryFailedError | Slow]) -> None:
        self._answers = iter(answers)
        self.is_over = asyncio.Event()

    async def ask(self) -> HostList:
        """See `Source`."""
        answer = next(self._answers, None)
        if answer is None:
            self.is_over.set()
            await asyncio.Event().wait()
        if isinstance(answer, Slow):
            answer = await self._answer_late(answer)
        if isinstance(answer, DiscoveryFailedError):
            raise answer
        assert answer is not None
        return answer

    @staticmethod
    async def _answer_late(slow: Slow) -> HostList | DiscoveryFailedError:
        """Timers of one loop fire in the order in which they are due: the lookout's, which was set before, first."""
        late = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(2 * PATIENCE_SECONDS, late.set_result, slow.answer)
        answer: HostList | DiscoveryFailedError = await late
        return answer

    def refuse(self, failure: DiscoveryFailedError) -> DiscoveryImpossibleError:
        """See `Source`."""
        return DiscoveryImpossibleError("./x", str(failure))


def look(
    *answers: HostList | DiscoveryFailedError | Slow, has_answered: bool = False
) -> tuple[list[HostList], list[str]]:
    found: list[HostList] = []
    complaints: list[str] = []

    async def scenario() -> None:
        script = Script(answers)
        tools = script, found.append, complaints.append
        poller = DiscoveryPoller(*tools, period_seconds=0, patience_seconds=PATIENCE_SECONDS, has_answered=has_answered)
        lookout = asyncio.create_task(poller.run())
        over = asyncio.create_task(script.is_over.wait())
        await asyncio.wait({lookout, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        lookout.cancel()
        await asyncio.wait({lookout})
        if not lookout.cancelled():
            lookout.result()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    return found, complaints


STAY = "the hosts that it named last stay."
FAILED = f"the host discovery script failed: exit code 1; {STAY}"
TOOK_LONG = f"the host discovery script failed: it took longer than 30 s; {STAY}"
RUNS = "the host discovery script has been running for 0.05 s"
NAMES_AGAIN = "the host discovery script names hosts again."
NONSENSE = [DiscoveryFailedError(f"byte {byte:#04x} is not UTF-8 text", kind="nonsense") for byte in range(200, 210)]
SAID_NONSENSE = f"the host discovery script failed: byte 0xc8 is not UTF-8 text; {STAY}"


@pytest.mark.parametrize(
    ("answers", "found", "complaints"),
    [
        ([A, A, AB, AB, BA, A], [A, AB, BA, A], []),
        (
            [A, FAILS, FAILS, LATE, FAILS, A, A, FAILS, AB],
            [A, AB],
            [FAILED, TOOK_LONG, FAILED, NAMES_AGAIN, FAILED, NAMES_AGAIN],
        ),
        ([FAILS, A], [A], [FAILED.replace(STAY, "the job waits for its answer."), NAMES_AGAIN]),
        ([A, *NONSENSE, FAILS, *NONSENSE, A], [A], [SAID_NONSENSE, FAILED, SAID_NONSENSE, NAMES_AGAIN]),
        ([Slow(A), Slow(A), AB, Slow(A)], [A, AB, A], [f"{RUNS}; the job waits for its answer.", f"{RUNS}; {STAY}"]),
        ([A, Slow(LATE), Slow(LATE), A], [A], [f"{RUNS}; {STAY}", TOOK_LONG, NAMES_AGAIN]),
        (
            [A, FAILS, Slow(A), Slow(FAILS), FAILS, Slow(FAILS), FAILS],
            [A],
            [FAILED, f"{RUNS}; {STAY}", NAMES_AGAIN, FAILED, f"{RUNS}; {STAY}", FAILED],
        ),
    ],
    ids=["changes", "fails", "fails first", "differs in words", "is slow", "is slow and fails", "fails and is slow"],
)
def test_each_change_of_hosts_and_of_the_script_is_reported_once(
    answers: list[HostList | DiscoveryFailedError | Slow], found: list[HostList], complaints: list[str]
) -> None:
    assert look(*answers) == (found, complaints)


def test_a_script_that_cannot_be_started_is_refused_at_first_but_not_later() -> None:
    with pytest.raises(DiscoveryImpossibleError, match=r"'./x'.*exit code 127: not found"):
        look(HOPELESS, A)
    found, complaints = look(A, HOPELESS, AB)
    assert (found, len(complaints)) == ([A, AB], 2)


def list_names(listed: HostList) -> list[str]:
    return [host.name for host in listed.hosts]


@in_loop
async def test_a_name_that_no_server_knows_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answered = threading.Event()

    def is_local(name: str) -> bool:
        asked.append(name)
        return name == "here" or (name == "slow" and not answered.wait(60))

    monkeypatch.setattr(reach, "is_local", is_local)
    monkeypatch.setattr(discovery, "LOOKUP_SECONDS", 0.05)
    listed = parse_hosts("slow:1,here:2,there:1")
    async with BackgroundTasks() as tasks:
        lookups = Lookups(tasks)
        try:
            await lookups.find_known(listed)
            await happen(lambda: lookups.pending == ("slow",))
            known = await lookups.find_known(listed)
            assert (list_names(known), lookups.pending) == (["here", "there"], ("slow",))
            assert (lookups.is_local("here"), lookups.is_local("there")) == (True, False)
            answered.set()
            await happen(lambda: not lookups.pending)
            assert list_names(await lookups.find_known(listed)) == ["slow", "here", "there"]
            assert sorted(asked) == ["here", "slow", "there"]
        finally:
            answered.set()


def test_hosts_that_come_and_go_are_described() -> None:
    before = (Host("a", 2), Host("b", 1), Host("c", 1))
    now = (Host("c", 4), Host("d", 1), Host("a", 2))
    assert list(describe_changes(before, now)) == [
        "the script names new hosts: d (1 slot)",
        "the script no longer names these hosts: b",
        "the script names other numbers of slots: c (4 slots, before 1)",
    ]
    assert list(describe_changes(before, tuple(reversed(before)))) == []


def test_a_script_that_has_answered_a_former_server_may_be_away() -> None:
    _, complaints = look(HOPELESS, has_answered=True)
    assert complaints == [f"the host discovery script failed: exit code 127: not found; {STAY}"]


def test_a_change_since_the_former_server_is_described() -> None:
    notices: list[str] = []
    spec = build_spec(("true",), 2, (), Path("/"), Elasticity(2, script="./hosts"))
    Discovery(spec, notices.append, (Host("a", 2),)).announce((Host("a", 1),))
    assert notices == ["the script names other numbers of slots: a (1 slot, before 2)."]


def test_a_start_that_must_wait_for_slots_is_announced() -> None:
    notices: list[str] = []
    found = Discovery(build_spec(("true",), 2, (), Path("/"), Elasticity(2, script="./hosts")), notices.append)
    found.announce((Host("a", 1),))
    found.announce((Host("a", 1), Host("b", 2)))
    assert notices[0].startswith("the hosts offer 1 of the 2 slots that the job starts with")
    assert "600 s (--elastic-timeout)" in notices[0]
    assert notices[1:] == ["the script names new hosts: b (2 slots)."]
