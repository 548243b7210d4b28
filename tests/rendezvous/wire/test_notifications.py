"""Members receive the present state, then each change; each host receives those of its own members."""

import asyncio
from contextlib import aclosing

import pytest

from rendezvous.core.messages import Announce, Depart, Dismiss, Effect, Interrupt, OfferResize, Publish, Refuse
from rendezvous.core.model import Assignment, Endpoint, Generation, Slot, Worker
from rendezvous.core.reports import Action, RecoveryDecision
from rendezvous.wire.notifications import KEY_BYTES, Notification, Published, SequencerFailed, Topic, Topics
from tests.waiting import in_loop

A0, A1 = Worker(Slot("a", 0), 1), Worker(Slot("a", 1), 1)
FIRST = Published(1, ((A0, Assignment(0, 1, 0, 1, 0, 1)),), b"k" * KEY_BYTES)
SECOND = Published(2, FIRST.members, b"l" * KEY_BYTES)
OPENED = Announce(1, Endpoint("10.0.0.1", 4711))
MOVED = Announce(1, Endpoint("10.0.0.1", 4712))
BROKEN, OFFERED = Interrupt(2, "it broke"), OfferResize(1, 3, adds=False, removes=False)
REFUSED, OTHERWISE = Refuse(A0, "it is over"), Refuse(A0, "for another reason")


@pytest.mark.parametrize(
    ("published", "read"),
    [
        ([FIRST, REFUSED, OPENED], [FIRST, REFUSED, OPENED]),
        ([FIRST, OPENED, MOVED], [FIRST, MOVED]),
        ([FIRST, OPENED, REFUSED, Depart(1, A1, 1), SequencerFailed(1, "no NumPy"), SECOND], [SECOND]),
        ([REFUSED, Refuse(A1, "it is over"), OTHERWISE], [Refuse(A1, "it is over"), OTHERWISE]),
        ([FIRST, Depart(1, A0, 0), Depart(1, A1, 1)], [FIRST, Depart(1, A0, 0), Depart(1, A1, 1)]),
        ([FIRST, REFUSED, Depart(1, A0, 0)], [FIRST, REFUSED, Depart(1, A0, 0)]),
        ([SECOND, BROKEN, FIRST, OPENED, Interrupt(1, "late"), Depart(1, A1, 1)], [SECOND, BROKEN]),
        ([BROKEN, Interrupt(1, "late")], [BROKEN]),
        ([FIRST, OFFERED, OfferResize(1, 2, adds=True, removes=False)], [FIRST, OFFERED]),
    ],
    ids=[
        "all in its order",
        "a sequencer that moved",
        "another generation",
        "one refusal of each worker, the last",
        "every departure",
        "a refusal and a departure of one worker",
        "a generation and what is newer than all of the former one",
        "the newest interrupt",
        "the newest offer",
    ],
)
@in_loop
async def test_a_late_subscriber_reads_the_present_state(
    published: list[Notification], read: list[Notification]
) -> None:
    topic = Topic()
    for notice in published:
        topic.publish(notice)
    topic.close()
    async with aclosing(topic.subscribe()) as notices:
        assert [notice async for notice in notices] == read


def test_generations_of_two_keys_are_two() -> None:
    assert Published(1, FIRST.members, SECOND.key) != FIRST


@in_loop
async def test_every_subscriber_reads_each_change_once() -> None:
    topic = Topic()
    async with aclosing(topic.subscribe()) as early, aclosing(topic.subscribe()) as late:
        topic.publish(FIRST)
        assert await anext(early) == FIRST
        topic.publish(FIRST)  # holds already
        topic.publish(OPENED)
        assert await anext(early) == OPENED
        assert [await anext(late), await anext(late)] == [FIRST, OPENED]
        topic.publish(SECOND)
        assert [await anext(early), await anext(late)] == [SECOND, SECOND]


@in_loop
async def test_a_subscriber_that_leaves_is_forgotten() -> None:
    topic = Topic()
    topic.publish(FIRST)
    async with aclosing(topic.subscribe()) as notices:
        assert await anext(notices) == FIRST
        assert len(topic._subscribers) == 1
    assert not topic._subscribers

    topic = Topic()
    waiting = asyncio.ensure_future(anext(aiter(topic.subscribe())))
    await asyncio.sleep(0)
    assert len(topic._subscribers) == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not topic._subscribers


A0, B0 = Worker(Slot("a", 0), 1), Worker(Slot("b", 0), 1)
RETRY = RecoveryDecision(Action.RETRY, (0, 1))
PAIR = (Assignment(0, 2, 0, 1, 0, 2), Assignment(1, 2, 0, 1, 1, 2))
PUBLISH = Publish(Generation(2, (A0, B0)), PAIR, "2 of 3 continue", RETRY)


def read(topics: Topics, host: str) -> list[Notification]:
    """What holds now."""

    async def story() -> list[Notification]:
        topics.of(host).close()
        async with aclosing(topics.of(host).subscribe()) as notices:
            return [notice async for notice in notices]

    return asyncio.run(story())


def post(*effects: Effect) -> Topics:
    topics = Topics()
    for effect in effects:
        assert topics.publish(effect)
    return topics


def test_each_host_receives_its_own_members_and_the_same_decision() -> None:
    topics = post(PUBLISH)
    (on_a,), (on_b,) = read(topics, "a"), read(topics, "b")
    assert isinstance(on_a, Published)
    assert isinstance(on_b, Published)
    assert (on_a.members, on_b.members) == (((A0, PAIR[0]),), ((B0, PAIR[1]),))
    assert on_a.decision == on_b.decision == RETRY
    assert on_a.key == on_b.key


def test_the_keys_of_a_job_follow_from_its_secret() -> None:
    one, same, other = (
        Topics(secret)._make_key(1) for secret in (b"s" * KEY_BYTES, b"s" * KEY_BYTES, b"t" * KEY_BYTES)
    )
    assert one == same != other


def test_each_generation_of_each_job_has_its_own_key() -> None:
    keys = [topics._make_key(generation) for topics in (Topics(), Topics()) for generation in (1, 1, 2)]
    assert keys[0] == keys[1]
    assert (len(set(keys)), {len(key) for key in keys}) == (4, {KEY_BYTES})


def test_a_generation_is_repeated_to_some_hosts_with_the_same_key() -> None:
    topics, secret = post(PUBLISH), b"s" * KEY_BYTES
    topics.repeat(PUBLISH, ["b"])
    assert len(read(topics, "b")) == 1
    first, second = Topics(secret), Topics(secret)
    assert first.publish(PUBLISH)
    second.repeat(PUBLISH, ["b"])
    assert (read(second, "a"), read(second, "b")) == ([], read(first, "b"))


def test_all_members_receive_what_concerns_all() -> None:
    topics = post(PUBLISH, Interrupt(2, "it broke"), OfferResize(2, 7, adds=True, removes=False), Depart(2, B0, 1))
    expected = [Interrupt(2, "it broke"), OfferResize(2, 7, adds=True, removes=False), Depart(2, B0, 1)]
    assert read(topics, "a")[1:] == read(topics, "b")[1:] == expected


def test_a_refusal_goes_to_one_host() -> None:
    topics = post(PUBLISH, Refuse(A0, "enough"))
    assert read(topics, "a")[1:] == [Refuse(A0, "enough")]
    assert read(topics, "b")[1:] == []


def test_effects_about_processes_are_not_published() -> None:
    assert not Topics().publish(Dismiss("a", 1, "it is idle"))


def test_a_forgotten_host_ends_its_subscriptions_and_its_next_agent_gets_no_old_notification() -> None:
    async def story() -> None:
        topics = post(PUBLISH)
        async with aclosing(topics.of("a").subscribe()) as notices:
            await anext(notices)
            topics.forget("a")
            async with asyncio.timeout(60):
                assert [notice async for notice in notices] == []
        assert read_now(topics) == []

    def read_now(topics: Topics) -> list[Notification]:
        return list(topics.of("a")._standing)

    asyncio.run(story())
    Topics().forget("unknown")
