"""The connection of an agent that has come by itself."""

import asyncio
from pathlib import Path

from hvdrun.agent.output import OutputForwarder
from hvdrun.joining.channel import dial, make_client_context
from tests.hvdrun.joining.test_door import opened
from tests.waiting import in_loop


@in_loop
async def test_an_agent_that_has_told_all_ends_its_connection_by_itself(tmp_path: Path) -> None:
    """It waits until all is written, and nothing is left to be."""
    async with opened(tmp_path / "job.token") as launcher:
        context = make_client_context(launcher.keys.token.authority)
        channel = await dial(launcher.place.address, launcher.place.port, context)
        output = OutputForwarder()
        output.attach(channel.transport)
        channel.follow(output)
        async with asyncio.timeout(30):
            await output.close()
        assert channel.transport.is_closing()
