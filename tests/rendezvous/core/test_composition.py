"""The next generation has the right members, in the right order."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rendezvous.core.composition import arrange, compose, find_offered, foresee
from rendezvous.core.model import Assignment, Host, Slot, Worker
from rendezvous.core.records import Standing, WorkerRecord
from rendezvous.core.reports import Decision
from rendezvous.core.state import State
from tests.rendezvous.core.transcript import play

THREE = ("policy min=1 max=3 failures=any", "hosts a:1 b:2", "join a:0", "join b:0", "join b:1")
ALL = (*THREE, "declare a:0", "declare b:0", "declare b:1")


def record(name: str, *, is_blank: bool = False) -> WorkerRecord:
    return WorkerRecord(Worker(Slot.parse(name), 1), Assignment(0, 1, 0, 1, 0, 1), is_blank=is_blank)


def names(records: tuple[WorkerRecord, ...]) -> list[str]:
    return [str(each.worker) for each in records]


def test_hosts_of_survivors_come_first_and_survivors_on_each() -> None:
    survivors = [record("c:1"), record("c:0"), record("a:1")]
    newcomers = [record("b:1"), record("b:0"), record("a:0"), record("d:0"), record("c:2")]
    assert names(arrange(survivors, newcomers, ["d", "b", "a", "c"])) == [
        "c:1", "c:0", "c:2", "a:1", "a:0", "d:0", "b:0", "b:1",
    ]  # fmt: skip


def test_who_has_not_got_the_state_does_not_come_first() -> None:
    survivors = [record("a:0", is_blank=True), record("b:0"), record("a:1")]
    assert names(arrange(survivors, [], ["a", "b"])) == ["b:0", "a:1", "a:0"]


def test_those_on_slots_that_are_no_longer_offered_are_left_out_where_all_begin_again() -> None:
    state = play(*ALL, "hosts b:2")
    assert names(compose(state, Decision.RESIZE, state.survivors()).members) == ["b:0", "b:1"]
    assert names(compose(state, Decision.RESIZE, state.survivors()).removed) == ["a:0"]
    assert names(compose(state, Decision.RETRY, state.survivors()).members) == ["a:0", "b:0", "b:1"]


def test_one_who_holds_the_state_stays_until_others_have_it() -> None:
    state = play(*ALL, "hosts c:3", "join c:0", "join c:1", "join c:2")
    composition = compose(state, Decision.RESIZE, state.survivors())
    assert names(composition.members) == ["a:0", "c:0", "c:1"]
    assert names(composition.removed) == ["b:0", "b:1"]


def test_nobody_is_left_out_below_the_least_size() -> None:
    state = play("policy min=3 max=3 failures=any", *ALL[1:], "hosts b:2 c:1")
    assert names(compose(state, Decision.RESIZE, state.survivors()).members) == ["a:0", "b:0", "b:1"]


def test_no_more_are_taken_in_than_there_is_room_for() -> None:
    state = play(*ALL, "exit b:1 1", "join b:1#2", "join a:0 after=1 continue state", "join b:0 after=1 continue state")
    crowd = replace(state, policy=replace(state.policy, max_size=2))
    assert names(compose(crowd, Decision.RESIZE, crowd.survivors()).added) == []
    assert names(compose(state, Decision.RESIZE, state.survivors()).added) == ["b:1#2"]


def test_who_starts_is_told_what_it_would_be_if_all_were_taken_in_now() -> None:
    state = play(*ALL)
    numbers = foresee(state, [record("b:2")])
    assert numbers[Slot("b", 2)] == Assignment(3, 4, 2, 3, 0, 1)
    assert numbers[Slot("a", 0)].rank == 0


def test_every_slot_of_every_host_is_offered() -> None:
    assert find_offered([Host("a", 2), Host("b", 1)]) == {Slot("a", 0), Slot("a", 1), Slot("b", 0)}


@given(st.permutations([f"{host}:{index}" for host in "abc" for index in range(3)]), st.integers(0, 9), st.data())
def test_each_is_in_once_hosts_are_together_and_the_blank_never_lead(
    order: list[str], count: int, data: st.DataObject
) -> None:
    blank = data.draw(st.sets(st.sampled_from(order[:count]))) if count else set()
    hosts = list(dict.fromkeys(name.partition(":")[0] for name in order[:count]))
    kept = sorted(order[:count], key=lambda name: hosts.index(name.partition(":")[0]))  # as a generation is
    survivors = [record(name, is_blank=name in blank) for name in kept]
    members = names(arrange(survivors, [record(name) for name in order[count:]], ["c", "a", "b"]))
    assert sorted(members) == sorted(order)
    on = [name.partition(":")[0] for name in members]
    assert on == sorted(on, key=on.index)
    holding = [name for name in kept if name not in blank]
    assert [name for name in members if name in holding] == holding
    assert not holding or members[0] == holding[0]


def test_a_state_without_a_generation_foresees_newcomers_alone() -> None:
    state = State(play(*THREE).policy, offered=(Host("a", 1), Host("b", 2)))
    assert {str(slot): each.rank for slot, each in foresee(state, [record("b:0"), record("a:0")]).items()} == {
        "a:0": 0,
        "b:0": 1,
    }
    assert Standing.READY not in state.counts
