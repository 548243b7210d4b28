"""One sequencer process, for which a shell script stands in: its start, its end, and the file that takes its errors."""

import asyncio
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from hvdrun.agent.sequencer_process import SequencerNotRespondingError, SequencerProcess
from hvdrun.processes.child import OutputFile
from rendezvous.wire.processes import Activation
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.hvdrun.agent.sleepers import files_left
from tests.waiting import LIMIT_SECONDS, in_loop


async def spawn(streams: tuple[int, int, int]) -> int:
    """Start a shell that reports a port and reads its orders."""
    stdin, stdout, stderr = streams
    command = ["sh", "-c", """echo '{"port": 4712}'; cat"""]
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)  # noqa: ASYNC220 - as the agent does
    process.returncode = 0  # the test reaps it
    return process.pid


@in_loop
async def test_the_process_ends_at_the_end_of_its_orders_and_leaves_no_descriptor() -> None:
    before = len(list_settled_descriptors())
    process = await SequencerProcess.start(spawn)
    await process.open(LIMIT_SECONDS)
    assert process.port == 4712
    process.close()
    _, status = await asyncio.to_thread(os.waitpid, process.pid, 0)
    assert (status, len(list_descriptors())) == (0, before)


@in_loop
async def test_an_ended_sequencer_that_was_not_reaped_takes_no_orders() -> None:
    async def spawn_open(streams: tuple[int, int, int]) -> int:
        inputs.append(os.dup(streams[0]))
        return await spawn(streams)

    inputs: list[int] = []
    process = await SequencerProcess.start(spawn_open)
    await process.open(LIMIT_SECONDS)
    process.activate(Activation(1, 2, bytes(32)))
    process.kill()
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(SequencerNotRespondingError):
        process.activate(Activation(2, 2, bytes(32)))
    await asyncio.to_thread(os.waitpid, process.pid, 0)
    process.close()
    os.close(inputs[0])


@pytest.mark.parametrize("count", range(5))
@in_loop
async def test_where_files_run_out_no_descriptor_is_left_open(count: int) -> None:
    with files_left(count), pytest.raises(OSError, match="Too many"):
        await SequencerProcess.start(spawn)


@pytest.mark.parametrize(("written", "last"), [("", ""), ("one\ntwo\n\n", "two"), ("x" * 5000 + "\nlast", "last")])
def test_the_last_line_is_read_and_no_file_is_left(
    written: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(OutputFile()) as file:
        subprocess.run(["printf", "%s", written], stdout=file.fileno(), check=True)
        assert file.read_last_line() == last
        assert list(tmp_path.iterdir()) == []
