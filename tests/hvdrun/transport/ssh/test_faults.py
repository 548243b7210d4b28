"""An unexpected error in a task or thread of an ssh connection is raised by the call that waits for its agent."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hvdrun.transport.ssh.channels import ForwardedChannel
from hvdrun.transport.ssh.transport import SshTransport
from rendezvous.wire.orders import Wait
from tests.hvdrun.transport.ssh.agents import make_transport
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd
from tests.waiting import happen, in_loop

pytestmark = needs_sshd


async def expect_fault(transport: SshTransport, server: SshServer) -> None:
    """The fault is raised by `messages`, and the connection ends all the same."""
    with pytest.raises(ZeroDivisionError, match="of a test"):
        async for _ in transport.messages():
            pass
    with pytest.raises(ZeroDivisionError, match="of a test"):
        await transport.close()
    with pytest.raises(ZeroDivisionError, match="of a test"):
        await transport.wait()
    await happen(lambda: not server.sessions(), "the end of the connection")


@in_loop
async def test_a_failing_thread_is_raised(home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: ForwardedChannel) -> bool:
        raise ZeroDivisionError("of a test")

    transport = make_transport(home.target(server))
    await transport.open()
    monkeypatch.setattr(ForwardedChannel, "work", fail)
    transport.send(Wait(60.0))  # wakes the thread
    await expect_fault(transport, server)


@in_loop
async def test_a_failing_task_of_a_tunnel_is_raised(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create: Callable[..., asyncio.Task[Any]] = asyncio.create_task

    async def fail() -> None:
        raise ZeroDivisionError("of a test")

    def create_task(coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
        if named.get("name") == "serve a tunnel's connection":
            coro.close()
            coro = fail()
        return create(coro, **named)

    monkeypatch.setattr(asyncio, "create_task", create_task)
    transport = make_transport(home.target(server))
    await transport.open()
    _, writer = await asyncio.open_connection("127.0.0.1", await transport.tunnel(1))
    try:
        await expect_fault(transport, server)
    finally:
        writer.close()
