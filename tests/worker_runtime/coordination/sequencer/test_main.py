"""The program: where it listens, when it ends, with which code, and what it loads."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hvdrun.startup.early import STOPPING
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.coordination.sequencer.client import ROOT, Client, Process, exchange, serving, summing
from worker_runtime.coordination.sequencer.__main__ import FOR_THE_OWNER

LOADED = """
import sys
import worker_runtime.coordination.sequencer.__main__
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "worker_runtime.coordination.sequencer", *arguments],
        **options,
        cwd=ROOT,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.5", "::1", "localhost"])
def test_the_sequencer_serves_on_the_given_address(address: str) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with Process(address) as process:
        process.activate(1, 1)
        Client(process, 0).await_proof().socket.close()
        assert process.end() == (0, "")


def test_the_sequencer_ends_immediately_when_its_owner_goes_whatever_is_connected() -> None:
    with serving(2) as (process, clients), process.connect(), process.connect() as half:
        half.sendall(b"half a greeting")
        clients[0].ask("a", summing(), bytes(64))
        assert process.end() == (0, "")
        assert clients[1].is_closed()


@pytest.mark.parametrize(
    ("arguments", "orders", "code", "sentence"),
    [
        ((), b"", 2, "one argument was expected"),
        (("127.0.0.1", "80"), b"", 2, "one argument was expected"),
        (("192.0.2.1",), b"", 1, "cannot serve on 192.0.2.1: .*assign requested address"),
        (("no-such-host.invalid",), b"", 1, "cannot serve on no-such-host.invalid"),
        (("127.0.0.1",), b"nonsense\n", 1, "a line with generation, size and key was expected"),
        (("127.0.0.1",), b"x" * 200_000, 1, "a line of more than 65536 bytes"),
    ],
)
def test_a_mistake_is_reported_in_a_sentence(
    arguments: tuple[str, ...], orders: bytes, code: int, sentence: str
) -> None:
    done = run(*arguments, input=orders)
    assert done.returncode == code
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("sequencer: ")
    assert sentence.partition(".*")[0] in line


def test_standard_input_has_to_be_a_pipe_or_a_socket() -> None:
    with Path("/dev/null").open("rb") as nothing:
        done = run("127.0.0.1", stdin=nothing)
    assert (done.returncode, b"has to be a pipe or a socket" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGPWR", "SIGRTMAX"]
)
def test_a_signal_that_reaches_all_processes_of_a_job_does_not_end_it(number: str) -> None:
    with serving(2) as (process, clients):
        process.popen.send_signal(signal.Signals[number])
        exchange(clients)
        assert process.end() == (0, "")


def test_the_signals_that_end_a_job_end_its_workers_and_not_the_sequencer() -> None:
    assert set(STOPPING) <= set(FOR_THE_OWNER)


def test_the_sequencer_loads_no_framework_and_nothing_of_the_network_of_agents() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "worker_runtime" in loaded
    assert not loaded & {"torch", "numpy", "grpc", "google", "rendezvous", "protos", "cloudpickle", "logging"}


def test_numpy_is_loaded_when_the_first_sum_is_requested() -> None:
    with serving(1) as (process, (client,)):
        maps = Path(f"/proc/{process.popen.pid}/maps")
        exchange([client])
        assert "numpy" not in maps.read_text(encoding="utf-8")
        client.ask("a", summing(), bytes(64))
        client.released()
        assert "numpy" in maps.read_text(encoding="utf-8")
