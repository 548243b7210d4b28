"""How a running job answers signals; what follows from them is in tests/system."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hvdrun.agent.stacks import RUNNING_SIGNAL, STACK_SIGNAL
from hvdrun.processes.signals import SUSPENDING, StopRequests, answer_signals, keep_signals
from hvdrun.startup.early import STOPPING, keep_notice
from rendezvous.core.outcome import name_signal
from tests.waiting import LIMIT_SECONDS

OTHER_SIGNALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _guarded() -> Iterator[None]:
    """A signal that is not answered is dropped: it must not end the process of the tests."""
    former = {number: signal.signal(number, lambda *_: None) for number in (*STOPPING, *OTHER_SIGNALS)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


STOPS = """
import signal, sys
from hvdrun.agent.stacks import RUNNING_SIGNAL, STACK_SIGNAL
from hvdrun.processes.signals import stop_process

number = signal.Signals(int(sys.argv[1]))
signal.signal(number, lambda *_: None)
stop_process(number)
print("continues, and has its handler" if callable(signal.getsignal(number)) else "", flush=True)
"""

numbers = pytest.mark.parametrize("number", STOPPING, ids=name_signal)


def answer(*numbers: int, ignored: int | None = None) -> list[object]:
    """What is called when these signals come, in order, after the ignored one."""
    calls: list[object] = []

    async def scenario() -> None:
        arrived = asyncio.Event()

        def stop(code: int, reason: str) -> None:
            calls.append((code, reason))
            arrived.set()

        def suspend(number: int) -> None:
            calls.append(("suspend", number))
            arrived.set()

        def pass_on(number: int) -> None:
            calls.append(("pass on", number))
            arrived.set()

        def notice() -> None:
            calls.append("notice")
            arrived.set()

        with answer_signals(stop, suspend, notice, pass_on):
            if ignored is not None:
                os.kill(os.getpid(), ignored)
            for number in numbers:
                arrived.clear()
                os.kill(os.getpid(), number)
                await asyncio.wait_for(arrived.wait(), LIMIT_SECONDS)

    asyncio.run(scenario())
    return calls


@numbers
def test_a_signal_stops_the_job_with_a_shell_s_code_for_it(number: int) -> None:
    assert answer(number) == [(128 + number, f"received {name_signal(number)}")]


def test_other_signals_suspend_hvdrun_count_as_a_stop_notice_or_are_passed_to_the_workers() -> None:
    suspended = [("suspend", number) for number in SUSPENDING]
    said = answer(*SUSPENDING, signal.SIGUSR2, signal.SIGUSR1, signal.SIGINT)
    assert said == [*suspended, "notice", ("pass on", signal.SIGUSR1), (130, "received SIGINT")]


@pytest.mark.parametrize(
    ("codes", "counts"),
    [
        ((143, 129, 143), [1, 1, 2]),  # systemd: SIGTERM, SIGHUP; then the user is impatient
        ((143, 129, 129), [1, 1, 2]),
        ((143, 130, 130), [1, 2, 3]),
        ((130, 143, 130), [1, 1, 2]),
        ((152, 152, 143, 152, 143), [1, 1, 1, 1, 2]),  # the kernel repeats SIGXCPU
        ((141, 143), [1, 1]),  # the reader of the output ends with the same SIGTERM
    ],
)
def test_a_request_to_stop_is_repeated_by_the_same_signal_or_ctrl_c(codes: tuple[int, ...], counts: list[int]) -> None:
    requests = StopRequests(parent=1000)
    counted = []
    for code in codes:
        is_new = requests.note(code)
        counted.append(requests.count)
        assert is_new == (counted[-1] != ([0, *counted])[-2])
    assert counted == counts


@pytest.mark.parametrize("requests", [StopRequests(1), StopRequests(1000, has_guardian=True)])
def test_a_signal_that_the_parent_forwards_too_is_no_second_request(requests: StopRequests) -> None:
    assert [requests.note(code) for code in (143, 143, 130, 130)] == [True, False, True, False]
    assert requests.count == 2


@pytest.mark.parametrize("number", SUSPENDING, ids=lambda number: number.name)
@pytest.mark.parametrize("has_shell", [True, False])
def test_a_process_suspends_itself_only_below_a_shell_that_can_continue_it(
    number: signal.Signals, *, has_shell: bool
) -> None:
    """The leader of a session has no shell above it, as with `ssh -t`."""
    started = [sys.executable, "-c", STOPS, str(int(number))]
    group = 0 if has_shell else None
    pipe = subprocess.PIPE
    with subprocess.Popen(started, stdout=pipe, process_group=group, start_new_session=not has_shell) as process:
        try:
            if has_shell:
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                assert os.WSTOPSIG(status) == number
                process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=LIMIT_SECONDS)[0] == b"continues, and has its handler\n"
        finally:
            process.kill()  # also where it is stopped


@numbers
def test_an_ignored_signal_stays_ignored(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)
    other = next(known for known in STOPPING if known is not number)
    assert answer(other, ignored=number) == [(128 + other, f"received {name_signal(other)}")]
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_signal_that_a_library_handles_stays_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    real, handler = signal.getsignal, signal.getsignal(signal.SIGPROF)
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGPROF else real(number))
    with keep_signals():
        assert answer(signal.SIGTERM, ignored=signal.SIGPROF) == [(143, "received SIGTERM")]
        assert real(signal.SIGPROF) is handler


@numbers
def test_a_kept_signal_is_answered_when_the_job_answers_signals(number: int) -> None:
    handler = signal.getsignal(number)
    with keep_signals():
        os.kill(os.getpid(), number)
        assert answer(signal.SIGUSR2)[0] == (128 + number, f"received {name_signal(number)}")
        os.kill(os.getpid(), number)  # has no effect
    assert signal.getsignal(number) is handler


def test_the_signals_that_ask_a_worker_where_it_is_end_no_hvdrun_in_its_place() -> None:
    assert not {STACK_SIGNAL, RUNNING_SIGNAL} & set(STOPPING)


def test_the_former_signal_handlers_are_restored() -> None:
    numbers = (*STOPPING, *OTHER_SIGNALS)
    former = [signal.getsignal(number) for number in numbers]
    answer(signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == former


def test_a_notice_that_comes_before_it_can_be_answered_is_answered_once() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    keep_notice()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert answer(signal.SIGINT)[0] == "notice"
    assert "notice" not in answer(signal.SIGINT)
