"""Looking again and again: only changes are told."""

import asyncio
from collections.abc import Iterable

import pytest

from hvdrun.discovery_script import DiscoveryFailedError, DiscoveryImpossibleError
from hvdrun.hosts import HostList
from hvdrun.lookout import Lookout
from rendezvous.core.model import Host

A = HostList((Host("a", 1),), {})
AB = HostList((Host("a", 1), Host("b", 2)), {})
BA = HostList((Host("b", 2), Host("a", 1)), {})
FAILS = DiscoveryFailedError("exit code 1")
LATE = DiscoveryFailedError("it took longer than 30 s")
HOPELESS = DiscoveryFailedError("exit code 127: not found", is_hopeless=True)
LIMIT_SECONDS = 10.0
PATIENCE_SECONDS = 0.05


class Slow:
    """An answer that comes when the user has been told of its slowness, or after that would have been due."""

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


def look(*answers: HostList | DiscoveryFailedError | Slow) -> tuple[list[HostList], list[str]]:
    """What is found and what is complained of."""
    found: list[HostList] = []
    complaints: list[str] = []

    async def scenario() -> None:
        script = Script(answers)
        tools = script, found.append, complaints.append
        looking = Lookout(*tools, period_seconds=0, patience_seconds=PATIENCE_SECONDS).run()
        lookout = asyncio.create_task(looking)
        over = asyncio.create_task(script.is_over.wait())
        await asyncio.wait({lookout, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        lookout.cancel()
        await asyncio.wait({lookout})
        if not lookout.cancelled():
            lookout.result()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))
    return found, complaints


def test_only_changes_are_told_and_the_order_is_one() -> None:
    assert look(A, A, AB, AB, BA, A) == ([A, AB, BA, A], [])


def test_a_failure_is_told_once_and_so_is_its_end() -> None:
    found, complaints = look(A, FAILS, FAILS, LATE, FAILS, A, A, FAILS, AB)
    assert found == [A, AB]
    assert complaints == [
        "the host discovery script failed: exit code 1; the hosts that it named last stay.",
        "the host discovery script failed: it took longer than 30 s; the hosts that it named last stay.",
        "the host discovery script failed: exit code 1; the hosts that it named last stay.",
        "the host discovery script names hosts again.",
        "the host discovery script failed: exit code 1; the hosts that it named last stay.",
        "the host discovery script names hosts again.",
    ]


def test_the_first_answer_may_fail_and_is_waited_for() -> None:
    found, complaints = look(FAILS, A)
    assert found == [A]
    assert complaints[0].endswith("exit code 1; the job waits for its answer.")


def test_a_script_that_cannot_be_started_is_refused_at_once_but_not_later() -> None:
    with pytest.raises(DiscoveryImpossibleError, match=r"'./x'.*exit code 127: not found"):
        look(HOPELESS, A)
    found, complaints = look(A, HOPELESS, AB)
    assert (found, len(complaints)) == ([A, AB], 2)


def test_a_slow_script_is_told_while_it_runs_once_until_it_is_fast_again() -> None:
    running = "the host discovery script has been running for 0.05 s"
    found, complaints = look(Slow(A), Slow(A), AB, Slow(A))
    assert found == [A, AB, A]
    assert complaints == [
        f"{running}; the job waits for its answer.",
        f"{running}; the hosts that it named last stay.",
    ]


def test_a_slow_script_that_fails_is_told_first_as_slow_and_then_no_more() -> None:
    _, complaints = look(A, Slow(LATE), Slow(LATE), A)
    assert complaints == [
        "the host discovery script has been running for 0.05 s; the hosts that it named last stay.",
        "the host discovery script failed: it took longer than 30 s; the hosts that it named last stay.",
        "the host discovery script names hosts again.",
    ]


def test_a_script_that_fails_and_then_hangs_is_told_as_slow() -> None:
    _, complaints = look(A, FAILS, Slow(A), Slow(FAILS), FAILS, Slow(FAILS), FAILS)
    failed, running = (
        f"the host discovery script {what}; the hosts that it named last stay."
        for what in ("failed: exit code 1", "has been running for 0.05 s")
    )
    assert complaints == [
        failed,
        running,
        "the host discovery script names hosts again.",
        failed,
        running,
        failed,
    ]


def test_a_failure_of_the_same_kind_is_told_once_whatever_it_says() -> None:
    failures = [
        DiscoveryFailedError(f"byte {byte:#04x} is not UTF-8 text", kind="nonsense") for byte in range(200, 210)
    ]
    _, complaints = look(A, *failures, FAILS, *failures, A)
    assert [complaint.partition(";")[0] for complaint in complaints] == [
        "the host discovery script failed: byte 0xc8 is not UTF-8 text",
        "the host discovery script failed: exit code 1",
        "the host discovery script failed: byte 0xc8 is not UTF-8 text",
        "the host discovery script names hosts again.",
    ]
