"""One try to become a member: what it notes, and that nothing stays open of one that is abandoned."""

import gc
import threading
import weakref
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from tests.ports import reserve_port
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.generation import PlayedGeneration, connect
from tests.worker_runtime.registrar import Registrar, publish
from worker_runtime.coordination import group as group_module
from worker_runtime.errors import InitializationError
from worker_runtime.groups.backends.choice import GLOO_ALONE
from worker_runtime.membership import formation as formation_module
from worker_runtime.membership.formation import Connected, Failed, Formation, FormationEvent, Joined
from worker_runtime.rendezvous import Action, Endpoint, JoinReason, RendezvousError, Report


class Scene:
    """A formation after the generation 3, which has begun, and notes its events.

    generation: what is formed, when its gate is opened.
    """

    def __init__(self, generation: PlayedGeneration) -> None:
        self.generation = generation
        self.registrar = Registrar()
        self.errors: list[Exception] = []
        self._words: list[str] = []
        self._changed = threading.Condition()
        self.formation = Formation(self.registrar, "127.0.0.1", GLOO_ALONE, 3, Report(JoinReason.FORM), self.hear)
        self.formation.start()

    def publish(self, size: int = 2) -> None:
        """Let it be a member of the generation 4."""
        self.registrar.read().answer(publish(4, Action.RETRY, (0, 2)[:size], size=size))

    def hear(self, news: FormationEvent) -> None:
        """Note each step in words."""
        match news:
            case Joined(formation, membership):
                assert formation.membership == membership
                self._note(f"joined {membership.generation}")
            case Connected():
                self._note("connected")
            case Failed(_, error, is_final):
                self.errors.append(error)
                self._note(f"failed{' for good' if is_final else ''}: {error}")

    def read_notes(self, count: int) -> list[str]:
        """The notes of the formation, once there are `count` of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._words) >= count, LIMIT_SECONDS)
        return self._words

    def end(self) -> None:
        """Wait for the end of its thread."""
        self.formation.thread.join(LIMIT_SECONDS)
        assert not self.formation.thread.is_alive()

    def _note(self, words: str) -> None:
        with self._changed:
            self._words.append(words)
            self._changed.notify_all()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """One whose thread has ended in the end."""
    with PlayedGeneration(4) as made:
        monkeypatch.setattr(formation_module, "form", made.form)
        monkeypatch.setattr(formation_module, "connect", connect)
        scene = Scene(made)
        yield scene
        scene.end()


def test_a_formation_joins_with_its_report_and_notes_each_step(scene: Scene) -> None:
    call = scene.registrar.read()
    assert (call.after, call.report.reason) == (3, JoinReason.FORM)
    call.answer(publish(4, Action.RETRY, (0, 2), size=2))
    assert scene.read_notes(1) == ["joined 4"]
    scene.generation.gate.set()
    assert scene.read_notes(2) == ["joined 4", "connected"]
    assert scene.formation.release() == (scene.generation.group, scene.generation.link)
    assert scene.formation.release() == (None, None)
    assert not scene.generation.is_closed


def test_a_formation_that_is_abandoned_when_it_has_connected_closes_its_group(scene: Scene) -> None:
    scene.generation.gate.set()
    scene.publish()
    scene.read_notes(2)
    scene.formation.abandon()
    assert scene.generation.is_closed


def test_a_formation_that_is_abandoned_before_it_is_published_says_nothing(scene: Scene) -> None:
    call = scene.registrar.read()
    scene.formation.abandon()
    call.answer(RendezvousError("the job has ended"))
    scene.end()
    assert scene.read_notes(0) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (KeyError("unforeseen"), "for good: {}: this worker cannot connect (KeyError('unforeseen'))"),
        (
            InitializationError("rank 1 is not there"),
            ": {}: rank 1 is not there",
        ),  # not final: this worker may try again
    ],
)
def test_an_error_of_this_worker_is_final_and_a_failed_connection_is_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception, reported: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(formation_module, "form", fail)
    scene.publish()
    expected = f"failed {reported}".replace(" :", ":").format("Horovod initialization failed")
    assert scene.read_notes(2)[1] == expected
    assert scene.formation.membership is not None


@pytest.fixture
def gone() -> Iterator[int]:
    """The port of a sequencer that is gone."""
    with reserve_port() as port:
        yield port


def test_a_formation_without_a_sequencer_fails_and_its_error_does_not_hold_the_group(
    scene: Scene, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Formed:
        """Whose sequencer was killed meanwhile."""

        sequencer, key, generation, rank, torch_groups = Endpoint("127.0.0.1", gone), bytes(32), 4, 0, Mock()

    made = [Formed()]
    group = weakref.ref(made[0])
    monkeypatch.setattr(formation_module, "form", lambda *_, **__: made.pop())
    monkeypatch.setattr(formation_module, "connect", group_module.connect)
    gc.disable()  # a group has threads and connections, and shall not wait for it
    try:
        scene.publish()
        assert scene.read_notes(2)[1].startswith("failed: ")
        scene.end()
        assert group() is None
    finally:
        gc.enable()
    assert len(scene.errors) == 1
