"""States of objects that have handlers, without any framework."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker_runtime.sampled_job import Communicator
from worker_runtime.elastic import sampler as samplers
from worker_runtime.elastic.copies import copy_nested
from worker_runtime.elastic.exchange import count_ranks, gather_objects
from worker_runtime.elastic.handled import HandledState
from worker_runtime.elastic.handlers import Registry, Stateful, StatefulHandler, StateHandler
from worker_runtime.elastic.recording import RecordedSampler, go_through
from worker_runtime.errors import CheckpointError


class Meter:
    """An object with a state_dict."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        """What it has."""
        return {"values": self.values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have it, and no copy."""
        self.values = state_dict["values"]


class Waiting(StateHandler):
    """A handler that waits for a reset."""

    def save(self) -> None:
        """Nothing."""

    restore = sync = save

    def waits_for_reset(self) -> bool:
        """Always."""
        return True


def make_state(**values: object) -> HandledState:
    state = HandledState(lambda value: value, lambda: 0, Registry([(Stateful, StatefulHandler), (set, Waiting)]))
    state.register(**values)
    return state


def test_objects_are_saved_by_their_handlers_and_values_as_they_are() -> None:
    meter = Meter()
    state = make_state(meter=meter, step=1)
    for _ in range(2):
        meter.values.append(3)
        state.step = 2
        state.restore()
        assert (meter.values, state.step, state.meter is meter) == ([], 1, True)


def test_each_handler_knows_its_name_and_another_object_in_its_place() -> None:
    state, other = make_state(meter=Meter()), Meter()
    assert state._handlers["meter"].name == "meter"
    other.values = [7]
    state.meter = other
    other.values.append(8)
    state.restore()
    assert other.values == [7]


def test_an_object_in_the_place_of_a_plain_value_is_saved_by_its_handler_from_then_on() -> None:
    state, meter = make_state(meter=None, step=1), Meter()
    state.step, state.meter = 2, meter
    meter.values.append(8)
    state.restore()
    assert (meter.values, state.meter is meter, state.step) == ([], True, 1)
    state.meter = 5
    state.save()
    state.meter = 6
    state.restore()
    assert state.meter == 5
    state._size = 1  # a function runs
    state.meter = meter
    state.save()
    assert state.to_checkpoint() == {"handled": {}, "plain": {"step": 1, "meter": meter}}


@pytest.mark.parametrize("make", [lambda it: [it], lambda it: (1, it), lambda it: {"a": [{}, it]}])
def test_a_container_of_objects_with_handlers_is_refused_by_name(make: Any) -> None:
    with pytest.raises(ValueError, match=r"the state's meters is a .* with an object of the class Meter inside"):
        make_state(meters=make(Meter()))
    state, ring = make_state(meters=Meter()), [[1]]
    ring.append(ring)  # type: ignore[arg-type]  # a ring is what is tried
    with pytest.raises(ValueError, match="Meter"):
        state.meters = make(Meter())
    state.register(meters=ring)


def test_one_handler_that_waits_makes_the_state_wait() -> None:
    assert not make_state(meter=Meter()).waits_for_reset()
    assert make_state(meter=Meter(), waiting=set()).waits_for_reset()


def test_a_checkpoint_of_other_names_is_refused_and_an_error_names_the_object() -> None:
    kept = make_state(meter=Meter(), step=1).to_checkpoint()
    with pytest.raises(CheckpointError, match="it has meter, step, and the state has meter"):
        make_state(meter=Meter()).from_checkpoint(kept)
    with pytest.raises(CheckpointError, match="meter is an object with a state in one, and a plain value"):
        make_state(meter=None, step=1).from_checkpoint(kept)
    with pytest.raises(CheckpointError, match="meter: 'values'"):
        make_state(meter=Meter(), step=1).from_checkpoint({"handled": {"meter": {}}, "plain": {"step": 1}})


def test_arrays_are_copied_over_their_earlier_copies() -> None:
    def copy_array(value: bytearray, earlier: object) -> bytearray:
        if not isinstance(earlier, bytearray):
            return bytearray(value)
        earlier[:] = value
        return earlier

    first = copy_nested({"a": [bytearray(b"1")], "b": ({},)}, None, bytearray, copy_array)
    second = copy_nested({"a": [bytearray(b"2"), bytearray(b"3")], "b": 4}, first, bytearray, copy_array)
    assert second == {"a": [bytearray(b"2"), bytearray(b"3")], "b": 4}
    assert second["a"][0] is first["a"][0]


def test_a_pass_records_its_batches_and_ends_with_what_lost_workers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(engine=Communicator.take(0, 2), is_late=False)
    monkeypatch.setattr(samplers, "RUNTIME", runtime)
    sampler, seen = RecordedSampler(range(6), shuffle=False), []
    for sample in go_through(sampler, lambda: sampler, 1):
        seen.append(sample)
        runtime.engine.complete_step(*([1] if len(seen) == 1 else []))
    assert (seen, sampler.processed_num) == ([0, 2, 4, 1, 3, 5], 6)


def test_a_process_without_a_job_is_alone() -> None:
    assert (count_ranks(), gather_objects("own", "name")) == (1, ["own"])
