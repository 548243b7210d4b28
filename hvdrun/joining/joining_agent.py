"""`hvdrun agent`: an agent that connects to the launcher by itself, serves one job, and ends.

The agent waits, up to a limit, until the token file exists and the launcher admits the agent. Then it waits without a
limit until the job begins. The agent ends immediately where a wait cannot help: another token, another version, a name
that is taken.
"""

import asyncio
import os
import random
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hvdrun.agent.agent import Ending, OrderReader, serve
from hvdrun.agent.streams import OutputForwarder
from hvdrun.errors import LaunchError, UsageError
from hvdrun.joining.channel import WAITING_SECONDS, Channel, TunnelEnd, dial, make_client_context
from hvdrun.joining.token import Token, TokenFileError
from hvdrun.processes.accelerators import count_accelerators
from hvdrun.processes.background import BackgroundTasks
from hvdrun.processes.scarcity import refuse_scarcity
from hvdrun.processes.signals import answer_notice
from hvdrun.spec.hosts import count_slots, is_host_name
from hvdrun.startup.early import STOPPING, has_foreign_handler
from hvdrun.version import __version__
from rendezvous.core.model import Endpoint
from rendezvous.core.outcome import SIGNAL_OFFSET, TEMPORARY_FAILURE, name_signal
from rendezvous.errors import RendezvousError
from rendezvous.wire import codec
from rendezvous.wire.orders import Admission, AgentAdmitted, AgentJoin, Begin

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0
_PAUSE_GROWTH = 1.6
_REMINDER_SECONDS = 300.0  # between two equal lines about what the agent waits for
_NO_JOB = "no job was there for {:g} s (--join-timeout): start this agent again later."
_ANSWER_SECONDS = 2.0  # a launcher that has not answered by then waits for the end of another agent of this name
_SIGNALLED = "this agent received a signal and stopped its workers."
_RELEASED = "the job no longer needs this agent, and has released it."
_NOT_NEEDED = "the job has all its hosts, or has ended: this agent is not needed."
# X.509's codes for "not yet valid" and "expired"; only certificates of an older hvdrun can be so.
_CLOCK_FAULTS = frozenset({9, 10})
_NOTICES = (signal.SIGTERM, signal.SIGUSR2)


class JoinRefusedError(LaunchError):
    """The launcher has refused this agent, or is not the one of its token.

    Cause: The token is of another job, the version differs, or another agent has the name.
    Remedy: See the reason in the sentence.
    """

    def __init__(self, place: Endpoint, reason: str) -> None:
        super().__init__(f"the job at {place} refuses this agent: {reason}")


class WrongLauncherError(LaunchError):
    """The server at that place cannot prove that it is the launcher of the token; the agent has sent it nothing.

    Cause: Another job listens at the address now, or the token file is of another job.
    Remedy: Give the token file that the job has printed.
    """

    def __init__(self, place: Endpoint, token_file: Path, reason: str) -> None:
        super().__init__(
            f"the server at {place} is not the one that the token file {str(token_file)!r} was created for ({reason}): "
            "give the token file of that job, or the address of this token's."
        )


class TokenExpiredError(LaunchError):
    """No launcher listens, and a later one would not accept the token.

    Cause: The job has ended, and its token is too old for the next one.
    Remedy: Give the agent the token file of a job that runs, or create one with `hvdrun token`.
    """

    def __init__(self, place: Endpoint, token_file: Path, token: Token) -> None:
        super().__init__(
            f"nothing listens at {place}, and the token file {str(token_file)!r} expired at {token.describe_expiry()}: "
            "give this agent the token file of a job that runs."
        )


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Which job an agent joins, and as which host.

    limit_seconds: how long the agent tries to reach the launcher; None: without a limit.
    """

    endpoint: Endpoint
    token_file: Path
    host: str
    slots: int
    limit_seconds: float | None = None


class JoiningAgent:
    """One agent, from its start to its end.

    Args:
        options: the options of `hvdrun agent`.
        say: prints a sentence in this agent's output.
    """

    def __init__(self, options: JoinOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._said = ""
        self._said_at = 0.0
        self._has_begun = False
        self._token: Token | None = None  # with which the launcher has admitted this agent
        self._stopped: asyncio.Future[int]  # by a signal; the exit code
        self._tasks = BackgroundTasks()
        self._tunnel = TunnelEnd(lambda: self._connect(slots=0), self._tasks)

    async def run(self) -> int:
        """Join and serve; returns the exit code.

        Raises:
            TokenFileError: the token cannot be used.
            LaunchError: the launcher refuses this agent, or the token has expired.
        """
        stopped = self._stopped = asyncio.get_running_loop().create_future()
        self._answer_signals()
        async with self._tasks:
            await self._tunnel.open()
            working = self._tasks.create_task(self._work(), name="join and serve")
            try:
                await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._tunnel.close()
        return stopped.result() if working.cancelled() else working.result()

    def _answer_signals(self) -> None:
        """End on these signals while there are no workers; signals that are ignored (nohup) stay ignored."""

        def end(number: int) -> None:
            if not self._stopped.done():
                self._say(f"{name_signal(number)} came while this agent had no workers: it ends.")
                if number in _NOTICES:
                    self._stopped.set_result(TEMPORARY_FAILURE)
                else:
                    self._stopped.set_result(SIGNAL_OFFSET + number)

        answer_notice(partial(end, signal.SIGUSR2))
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN and not has_foreign_handler(number):
                asyncio.get_running_loop().add_signal_handler(number, end, number)

    async def _work(self) -> int:
        now = asyncio.get_running_loop().time
        began, limit_seconds = now(), self._options.limit_seconds
        while True:
            try:
                ends = None
                if limit_seconds is not None:
                    ends = max(began + limit_seconds, now() + _ANSWER_SECONDS)
                async with asyncio.timeout_at(ends):  # a stopped launcher would not answer after the handshake
                    channel = await self._join()
            except TokenFileError:
                raise
            except FileNotFoundError:
                self._wait_for(f"the token file {str(self._options.token_file)!r}, which does not exist yet")
            except (OSError, EOFError, RendezvousError) as error:
                self._wait_for(f"hvdrun at {self._options.endpoint} ({_explain(error)})")
            else:
                if isinstance(channel, int):
                    return channel
                ended = await self._serve(channel)
                if ended is not None:
                    return ended
                began = now()
                self._wait_for(f"hvdrun at {self._options.endpoint} (its connection ended before the job began)")

            if limit_seconds is not None and now() - began >= limit_seconds:
                self._say(_NO_JOB.format(limit_seconds))
                return TEMPORARY_FAILURE
            await asyncio.sleep(self._pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads many agents
            self._pause_seconds = min(LONGEST_PAUSE_SECONDS, self._pause_seconds * _PAUSE_GROWTH)

    async def _join(self) -> Channel | int:
        """The connection to a launcher that has admitted this agent; an exit code where it is not needed."""
        options = self._options
        channel = await self._connect(options.slots)
        if isinstance(channel, Channel):
            self._pause_seconds = FIRST_PAUSE_SECONDS
            self._tell(f"joined the job at {options.endpoint} as {options.host} with {count_slots(options.slots)}.")
        return channel

    async def _connect(self, slots: int) -> Channel | int:
        """A connection to the launcher, for this agent, or with 0 slots for a call to the rendezvous.

        Returns:
            The connection, or an exit code where no more agents are needed.

        Raises:
            LaunchError: the launcher refuses this agent, or is another one, or the token has expired.
            OSError, EOFError, RendezvousError: no launcher answers yet.
        """
        options = self._options
        token = None if slots else self._token  # the file may be used up: calls to the rendezvous do without it
        if token is None:
            token = Token.read(options.token_file)

        try:
            channel = await dial(options.endpoint.address, options.endpoint.port, make_client_context(token.authority))
        except ssl.SSLCertVerificationError as error:
            clock = "; is a clock wrong here or there?" if error.verify_code in _CLOCK_FAULTS else ""
            raise WrongLauncherError(options.endpoint, options.token_file, f"{error.verify_message}{clock}") from error
        except OSError as error:
            if slots and token.has_expired():
                raise TokenExpiredError(options.endpoint, options.token_file, token) from error
            raise

        admitted = False
        late = f"the answer of hvdrun at {options.endpoint}: another agent may have the name {options.host!r}"
        waiting = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._wait_for, late)
        try:
            channel.keep_alive(WAITING_SECONDS)
            channel.transport.write(
                codec.encode_frame(AgentJoin(__version__, token.secret, options.host, slots, self._tunnel.port))
            )
            match codec.decode_frame(AgentAdmitted, await channel.read_frame()):
                case AgentAdmitted(Admission.ACCEPTED):
                    admitted = True
                    self._token = token
                    return channel
                case AgentAdmitted(Admission.NOT_NEEDED, reason, exit_code):
                    self._say(reason)
                    return exit_code
                case AgentAdmitted(_, reason):
                    raise JoinRefusedError(options.endpoint, reason)
        finally:
            waiting.cancel()
            if not admitted:
                channel.abort()
        raise AssertionError("every answer is one of these")

    async def _serve(self, channel: Channel) -> int | None:
        """Serve the launcher; returns the exit code, or None where the connection ended before the job began."""
        self._has_begun = False

        def note_begin(begin: Begin) -> None:
            self._has_begun = True
            channel.keep_alive(max(begin.launcher_timeout_seconds, WAITING_SECONDS))
            self._say(f"the job started on {begin.host}.")

        output = OutputForwarder()
        output.attach(channel.transport)
        channel.follow(output)
        orders = OrderReader(channel.reader)
        try:
            ending = await serve(orders, output, note_begin, is_joined=True)
        except RendezvousError as error:
            self._say(f"{str(error).rstrip('.')}: this agent stopped its workers.")
            return TEMPORARY_FAILURE
        finally:
            self._answer_signals()
            if not self._has_begun:
                channel.abort()
        match ending:
            case Ending.RELEASED:
                await channel.close()
                if not self._has_begun:
                    self._say(_NOT_NEEDED)
                elif orders.is_signalled:
                    self._say(_SIGNALLED)
                else:
                    self._say(_RELEASED)
                return orders.exit_code
            case Ending.SIGNALLED:
                self._say(_SIGNALLED)
                return orders.exit_code
            case Ending.LAUNCHER_GONE if not self._has_begun:
                return None
            case Ending.LAUNCHER_GONE:
                self._say("the launcher disappeared: this agent stopped its workers.")
                return TEMPORARY_FAILURE

    def _wait_for(self, what: str) -> None:
        """Say what the agent waits for.

        Message: waiting for hvdrun at PLACE (REASON).
        Message: no job was there for SECONDS s (--join-timeout): start this agent again later.
        Cause: hvdrun does not run yet, or has ended, or a firewall refuses the connection.
        Remedy: Start hvdrun with `--bind PLACE`. The agent tries again until `--join-timeout`.
        """
        self._tell(f"waiting for {what}.")

    def _tell(self, sentence: str) -> None:
        """Print this when it is new, and as a reminder."""
        now = asyncio.get_running_loop().time()
        if sentence != self._said or now - self._said_at >= _REMINDER_SECONDS:
            self._said, self._said_at = sentence, now
            self._say(sentence)


def _explain(error: Exception) -> str:
    """Why the launcher cannot be reached: in the system's words, since asyncio's name addresses in Python's form."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror | ssl.SSLError):
        return os.strerror(error.errno).lower()
    return getattr(error, "strerror", None) or str(error) or "no answer"


def run_agent(values: Mapping[str, Any], say: Callable[[str], None]) -> int:
    """Run `hvdrun agent` with the values of its command line; returns the exit code.

    Raises:
        HvdrunError: the job cannot be joined.
    """
    refuse_scarcity("the agent")
    if not is_host_name(values["name"]):
        raise UsageError(f"a host cannot be called {values['name']!r}: give another name, as in --name node1.")
    slots = values["slots"] or max(1, count_accelerators())
    token_file = Path.cwd() / values["token_file"]
    options = JoinOptions(values["endpoint"], token_file, values["name"], slots, values["join_timeout"])

    async def run() -> int:
        return await JoiningAgent(options, say).run()

    return asyncio.run(run())
