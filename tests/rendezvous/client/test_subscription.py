"""One thread reads what the topic holds; all that wait or follow hear it, until the client is closed."""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.client.calls import name_socket
from rendezvous.client.subscription import Subscription
from rendezvous.core.messages import Interrupt, Refuse
from rendezvous.errors import CallRefusedError, UnreachableError, WireError
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Topic
from tests.rendezvous.stage import A0, in_clean_loop, in_thread, serve_method
from tests.waiting import LIMIT_SECONDS, happen, wait_until

BROKEN, BURNT = Interrupt(1, "it broke"), Interrupt(2, "it burnt")


class Agent:
    """Sends what a topic holds, or refuses to, or talks nonsense."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.refuses = False
        self.babbles = False
        self.watches = 0

    async def watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[pb.WatchRequest, pb.Notification]
    ) -> AsyncIterator[pb.Notification]:
        """See rendezvous.proto, Watch."""
        assert codec.decode_worker(request.worker) == A0
        self.watches += 1
        if self.refuses:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for you")
        if self.babbles:
            yield pb.Notification()
        async for notice in self.topic.subscribe():
            yield codec.encode_notification(notice)


async def serve(agent: Agent, path: Path) -> grpc.aio.Server:
    handler = grpc.unary_stream_rpc_method_handler(
        agent.watch,
        request_deserializer=pb.WatchRequest.FromString,
        response_serializer=pb.Notification.SerializeToString,
    )
    return await serve_method(path, "Watch", handler)


@contextmanager
def open_subscription(path: Path) -> Iterator[Subscription]:
    with grpc.insecure_channel(name_socket(path)) as channel:
        subscription = Subscription(pb_grpc.RendezvousStub(channel), A0, str(path))
        with closing(subscription):
            yield subscription


def find(notice: Notification) -> str | None:
    return notice.reason if isinstance(notice, Interrupt) else None


def soon() -> float:
    return time.monotonic() + LIMIT_SECONDS


@in_clean_loop
async def test_a_wait_finds_present_and_later_notifications(tmp_path: Path) -> None:
    agent = Agent()
    server = await serve(agent, tmp_path / "s")
    agent.topic.publish(Refuse(A0, "another matter"))
    with open_subscription(tmp_path / "s") as subscription:
        assert await in_thread(lambda: subscription.wait(find, time.monotonic() + 0.1)) is None
        agent.topic.publish(BROKEN)
        assert await in_thread(lambda: subscription.wait(find, soon())) == "it broke"
        assert await in_thread(lambda: subscription.wait(find, soon())) == "it broke"
        assert agent.watches == 1
        await in_thread(subscription.close)
    await server.stop(None)


@in_clean_loop
async def test_every_follower_receives_each_notification_once_through_broken_connections(tmp_path: Path) -> None:
    agent = Agent()
    server = await serve(agent, tmp_path / "s")
    with open_subscription(tmp_path / "s") as subscription, ThreadPoolExecutor(2) as pool:
        heard: list[list[Notification]] = [[], []]

        def follow(notices: list[Notification]) -> None:
            notices.extend(subscription.follow())

        following = [pool.submit(follow, notices) for notices in heard]
        await happen(lambda: len(subscription._subscribers) == 2)
        agent.topic.publish(BROKEN)
        await happen(lambda: list(subscription._standing) == [BROKEN])
        await server.stop(None)
        server = await serve(agent, tmp_path / "s")
        await happen(lambda: agent.watches > 1)
        agent.topic.publish(BURNT)
        await happen(lambda: list(subscription._standing) == [BURNT])
        await in_thread(subscription.close)
        for each in following:
            await in_thread(each.result)
        assert heard == [[BROKEN, BURNT]] * 2
    await server.stop(None)


@in_clean_loop
async def test_closing_ends_waits_and_subscriptions(tmp_path: Path) -> None:
    server = await serve(Agent(), tmp_path / "s")
    with open_subscription(tmp_path / "s") as subscription, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(subscription.wait, find, float("inf"))
        following = pool.submit(list, subscription.follow())
        await happen(lambda: len(subscription._subscribers) == 1 and subscription._call is not None)
        await in_thread(subscription.close)
        with pytest.raises(UnreachableError, match="the client was closed"):
            await in_thread(waiting.result)
        assert await in_thread(following.result) == []
        assert not [thread for thread in threading.enumerate() if thread.name == "hvdrun-notices"]
        with pytest.raises(UnreachableError, match="the client was closed"):
            subscription.wait(find, soon())
        assert list(subscription.follow()) == []
    await server.stop(None)


def test_closing_does_not_wait_for_a_missing_agent(tmp_path: Path) -> None:
    with open_subscription(tmp_path / "s") as subscription, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subscription.wait, find, float("inf"))
        wait_until(lambda: subscription._call is not None)
        subscription.close()
        with pytest.raises(UnreachableError):
            waiting.result(LIMIT_SECONDS)


@pytest.mark.parametrize(("fault", "error"), [("refuses", CallRefusedError), ("babbles", WireError)])
@in_clean_loop
async def test_a_refusal_or_a_malformed_message_ends_a_subscription_and_the_next_wait_starts_one(
    tmp_path: Path, fault: str, error: type[Exception]
) -> None:
    agent = Agent()
    setattr(agent, fault, True)
    server = await serve(agent, tmp_path / "s")
    with open_subscription(tmp_path / "s") as subscription:
        with pytest.raises(error):
            await in_thread(lambda: subscription.wait(find, soon()))
        with pytest.raises(error):
            await in_thread(lambda: list(subscription.follow()))
        setattr(agent, fault, False)
        agent.topic.publish(BROKEN)
        assert await in_thread(lambda: subscription.wait(find, soon())) == "it broke"
        await in_thread(subscription.close)
    await server.stop(None)


@in_clean_loop
async def test_an_unexpected_error_of_the_reader_reaches_all_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent()
    server = await serve(agent, tmp_path / "s")
    monkeypatch.setattr(codec, "decode_notification", lambda _: dict[str, str]()["missing"])
    agent.topic.publish(BROKEN)
    with open_subscription(tmp_path / "s") as subscription:
        with pytest.raises(KeyError):
            await in_thread(lambda: subscription.wait(find, float("inf")))
        with pytest.raises(KeyError):
            await in_thread(lambda: list(subscription.follow()))
        await in_thread(subscription.close)
    await server.stop(None)
