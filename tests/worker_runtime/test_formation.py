"""One try to become a member: what it tells, and that nothing stays open of one that nobody waits for."""

import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.worker_runtime.conversation import LIMIT_SECONDS
from tests.worker_runtime.generation import Generation
from tests.worker_runtime.registrar import Registrar, publish
from worker_runtime import formation as formation_module
from worker_runtime.backends.choice import GLOO_ALONE
from worker_runtime.errors import InitializationError
from worker_runtime.formation import Formation
from worker_runtime.link import Link
from worker_runtime.membership import Decision, Endpoint, Membership, RendezvousError, Report, Wish


class Told:
    """Notes what a formation tells."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.errors: list[Exception] = []
        self.changed = threading.Condition()

    def note_joined(self, formation: Formation, membership: Membership) -> None:
        """As `Follower`."""
        assert formation.membership == membership
        self._note(f"joined {membership.generation}")

    def note_connected(self, formation: Formation) -> None:
        """As `Follower`."""
        assert formation.is_connected
        self._note("connected")

    def note_failed(self, formation: Formation, error: Exception, *, is_final: bool) -> None:
        """As `Follower`."""
        del formation
        self.errors.append(error)
        self._note(f"failed{' for good' if is_final else ''}: {error}")

    def wait_for(self, count: int) -> list[str]:
        """Until so much was told."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.words) >= count, LIMIT_SECONDS)
        return self.words

    def _note(self, words: str) -> None:
        with self.changed:
            self.words.append(words)
            self.changed.notify_all()


@pytest.fixture
def registrar() -> Registrar:
    """The rendezvous."""
    return Registrar()


@pytest.fixture
def told() -> Told:
    """Who hears of the formation."""
    return Told()


@pytest.fixture
def formation(registrar: Registrar, told: Told) -> Iterator[Formation]:
    """One that has begun; its thread has ended in the end."""
    made = Formation(registrar, "127.0.0.1", GLOO_ALONE, 3, Report(Wish.FORM), told)
    made.start()
    yield made
    made.join_thread(LIMIT_SECONDS)
    assert not made._thread.is_alive()


@pytest.fixture
def generation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Generation]:
    """What is formed, when `gate` is opened."""
    with Generation(4) as made:
        monkeypatch.setattr(formation_module, "form", lambda *_, **__: made.gate.wait(LIMIT_SECONDS) and made.group)
        yield made


def test_it_joins_with_its_report_and_tells_each_step(
    formation: Formation, registrar: Registrar, told: Told, generation: Generation
) -> None:
    call = registrar.read()
    assert (call.after, call.report.wish) == (3, Wish.FORM)
    call.answer(publish(4, Decision.RETRY, (0, 2), size=2))
    assert told.wait_for(1) == ["joined 4"]
    generation.gate.set()
    assert told.wait_for(2) == ["joined 4", "connected"]
    assert formation.take() == (generation.group, generation.link)
    assert formation.take() == (None, None)
    assert not generation.is_closed


def test_a_generation_of_one_has_nothing_to_connect(formation: Formation, registrar: Registrar, told: Told) -> None:
    registrar.read().answer(publish(4, Decision.RETRY, (0,)))
    assert told.wait_for(2) == ["joined 4", "connected"]
    assert formation.take() == (None, None)


def test_one_that_is_abandoned_while_it_connects_closes_what_it_opens(
    formation: Formation, registrar: Registrar, told: Told, generation: Generation
) -> None:
    registrar.read().answer(publish(4, Decision.RETRY, (0, 2), size=2))
    told.wait_for(1)
    formation.abandon()
    generation.gate.set()
    formation.join_thread(LIMIT_SECONDS)
    assert generation.is_closed
    assert told.words == ["joined 4"]


def test_one_that_is_abandoned_when_it_has_connected_closes_what_nobody_has_taken(
    formation: Formation, registrar: Registrar, told: Told, generation: Generation
) -> None:
    generation.gate.set()
    registrar.read().answer(publish(4, Decision.RETRY, (0, 2), size=2))
    told.wait_for(2)
    formation.abandon()
    assert generation.is_closed


def test_one_that_is_abandoned_before_it_is_published_says_nothing(
    formation: Formation, registrar: Registrar, told: Told
) -> None:
    call = registrar.read()
    formation.abandon()
    call.answer(RendezvousError("the job has ended"))
    formation.join_thread(LIMIT_SECONDS)
    assert told.words == []


def test_who_is_refused_has_failed_for_good(formation: Formation, registrar: Registrar, told: Told) -> None:
    registrar.read().answer(RendezvousError("was replaced by incarnation 2"))
    assert told.wait_for(1) == ["failed for good: was replaced by incarnation 2"]
    assert formation.membership is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_its_own_is_final(
    formation: Formation, registrar: Registrar, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(formation_module, "form", fail)
    registrar.read().answer(publish(4, Decision.RETRY, (0, 2), size=2))
    expected = "failed for good: Horovod initialization failed: this worker cannot connect (KeyError('unforeseen'))"
    assert told.wait_for(2)[1] == expected
    assert formation.membership is not None


def test_who_cannot_connect_may_try_again(
    formation: Formation, registrar: Registrar, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InitializationError("rank 1 is not there")

    monkeypatch.setattr(formation_module, "form", fail)
    registrar.read().answer(publish(4, Decision.RETRY, (0, 2), size=2))
    assert told.wait_for(2)[1] == "failed: Horovod initialization failed: rank 1 is not there"
    assert not formation.is_connected


def test_where_the_sequencer_is_gone_it_fails_at_once_and_the_error_does_not_hold_the_group(
    formation: Formation, registrar: Registrar, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(*listener.getsockname())

    class Formed:
        """Whose sequencer was killed meanwhile."""

        def connect(self, limit: timedelta) -> Link:
            return Link.connect(endpoint, bytes(32), 4, 0, limit)

    made = [Formed()]
    group = weakref.ref(made[0])
    monkeypatch.setattr(formation_module, "form", lambda *_, **__: made.pop())
    gc.disable()  # a group has threads and connections, and shall not wait for it
    try:
        registrar.read().answer(publish(4, Decision.RETRY, (0, 2), size=2))
        assert told.wait_for(2)[1].startswith("failed: ")
        formation.join_thread(LIMIT_SECONDS)
        assert group() is None
    finally:
        gc.enable()
    assert len(told.errors) == 1
