"""One sequencer process: its port, its orders, its end; a shell script stands in for it, and the test reaps it."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator

import pytest

from hvdrun.agent.sequencer_process import SequencerProcess
from rendezvous.errors import SequencerStartError
from rendezvous.sequencing import Activation
from tests.hvdrun.agent.sleepers import count_descriptors, files_left
from tests.waiting import LIMIT_SECONDS, in_loop

ACTIVATION = Activation(3, 2, bytes(range(32)))

Streams = tuple[int, int, int]


def run_script(script: str) -> Callable[[Streams], Awaitable[int]]:
    """Starts a shell with this script."""

    async def spawn(streams: Streams) -> int:
        stdin, stdout, stderr = streams
        process = subprocess.Popen(["sh", "-c", script], stdin=stdin, stdout=stdout, stderr=stderr)  # noqa: ASYNC220 - as the agent does
        process.returncode = 0  # the test reaps it
        return process.pid

    return spawn


async def reap(process: SequencerProcess) -> None:
    """Wait for its end, and tell of it as the agent does."""
    _, status = await asyncio.to_thread(os.waitpid, process.pid, 0)
    process.note_end(status)


async def start(script: str) -> SequencerProcess:
    return await SequencerProcess.start(run_script(script))


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = count_descriptors()
    yield
    assert count_descriptors() <= before


@in_loop
async def test_it_tells_its_port_and_is_told_its_generations() -> None:
    process = await start("""echo '{"port": 4712}'; read line; echo "$line" >&2; exit 5""")
    await process.open(LIMIT_SECONDS)
    assert process.port == 4712
    process.activate(ACTIVATION)
    await reap(process)
    assert process.describe_end() == f"it ended with exit code 5 ({ACTIVATION.encode().decode().strip()})"
    with pytest.raises(SequencerStartError, match="ended with exit code 5"):
        process.activate(ACTIVATION)
    process.close()


@in_loop
async def test_it_ends_at_the_end_of_its_orders() -> None:
    process = await start("""echo '{"port": 4712}'; cat""")
    await process.open(LIMIT_SECONDS)
    process.close()
    _, status = await asyncio.to_thread(os.waitpid, process.pid, 0)
    assert status == 0


@in_loop
async def test_one_that_says_nothing_is_given_up_and_can_be_killed() -> None:
    process = await start("exec sleep 600")
    with pytest.raises(SequencerStartError, match=r"port within 0\.2 s"):
        await process.open(0.2)
    process.kill()
    await reap(process)
    assert process.describe_end() == f"it ended with signal {signal.SIGKILL:d}"
    process.kill()  # nobody is hit
    process.close()


@in_loop
async def test_one_that_does_not_listen_any_more_is_told() -> None:
    process = await start("""exec 0<&-; echo '{"port": 4712}'; exec sleep 600""")
    await process.open(LIMIT_SECONDS)
    with pytest.raises(SequencerStartError, match="it takes no orders: Broken pipe"):
        process.activate(ACTIVATION)
    process.kill()
    await reap(process)
    process.close()


@in_loop
async def test_one_that_cannot_be_started_leaves_nothing() -> None:
    async def spawn(_: Streams) -> int:
        raise FileNotFoundError

    with pytest.raises(FileNotFoundError):
        await SequencerProcess.start(spawn)


@pytest.mark.parametrize("count", range(5))
@in_loop
async def test_where_files_run_out_none_is_left_open(count: int) -> None:
    with files_left(count), pytest.raises(OSError, match="Too many"):
        await SequencerProcess.start(run_script(""))
