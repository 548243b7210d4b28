"""An unexpected error in a task of a connectivity check is raised where the check is wanted."""

import pytest

from hvdrun.network import probe as probe_module
from hvdrun.network.connectivity import check_connectivity
from hvdrun.network.probe import probe
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import AgentMessage, Order, ProbeTarget
from tests.waiting import in_loop

TASKS = {"wait for an answer to a check"}


@in_loop
async def test_a_failing_answer_is_raised() -> None:
    async def receive(host: str) -> AgentMessage:
        raise ZeroDivisionError(host)

    def send(_host: str, _order: Order) -> None:
        """Send to no host: the test has none."""

    with pytest.raises(ZeroDivisionError, match="a"):
        await check_connectivity(["a"], send, receive)


@in_loop
async def test_a_failing_probe_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(probe_module, "_prove", fail)
    with pytest.raises(ZeroDivisionError, match="of a test"):
        await probe(b"token", [ProbeTarget("a", Endpoint("127.0.0.1", 1))])
