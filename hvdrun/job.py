"""One job, from its start to its end.

The agents are started first. While they boot, hvdrun imports gRPC, issues the job's certificates and opens the server.
"""

import asyncio
import os
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdrun.accounts.history import History
from hvdrun.accounts.outcome_file import JobFacts, OutcomeFile
from hvdrun.accounts.page import describe_goodput, describe_unseen, render_table
from hvdrun.console import Console
from hvdrun.console.files import OutputFiles
from hvdrun.console.job_reporter import JobReporter
from hvdrun.console.marks import RankTable, read_local_clock
from hvdrun.console.start_line import StartLine, StartNotice
from hvdrun.console.stdin import StdinReader
from hvdrun.errors import CANNOT_LAUNCH, OUTPUT_LOST, LaunchError
from hvdrun.hangs.hold_ups import HoldUps
from hvdrun.hangs.job_stacks import JobStacks
from hvdrun.hosts.agent_config import AgentConfig
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.hosts.checkpoints import hold_checkpoints
from hvdrun.hosts.hosts import Hosts
from hvdrun.hosts.masters import Masters
from hvdrun.hosts.reach import Transports
from hvdrun.jobs.record import JobRecord
from hvdrun.jobs.start import StartWatch
from hvdrun.processes.background import BackgroundTasks, report_callback_errors
from hvdrun.processes.scarcity import THREADS, refuse_scarcity
from hvdrun.processes.signals import StopRequests, answer_signals, stop_process
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.redaction import redact_command
from rendezvous.core.explanation import explain_end
from rendezvous.core.losses import is_lost, unheard_hosts
from rendezvous.core.messages import (
    Dismiss,
    Effect,
    Effects,
    Event,
    Exited,
    Finish,
    Launch,
    Level,
    Log,
    Noticed,
    Notify,
    Publish,
    Stopped,
    Terminate,
)
from rendezvous.core.model import Restarts, Slot, Worker
from rendezvous.core.outcome import Outcome, stop
from rendezvous.core.state import State
from rendezvous.wire.accounts import AccountsReported
from rendezvous.wire.hangs import GiveUp, Stacks, WaitsReported
from rendezvous.wire.orders import (
    AgentFailed,
    AgentMessage,
    Alert,
    Examined,
    Input,
    Output,
    PassOn,
    Remark,
    Reserved,
    Started,
    Taken,
    Written,
    agent_identity,
)

if TYPE_CHECKING:
    from hvdrun.hosts.start_check import StartCheck
    from hvdrun.jobs.continuation import Continuation
    from hvdrun.joining.roster import Roster
    from hvdrun.tasks.dispatcher import Dispatcher
    from rendezvous.server.authority import Authority
    from rendezvous.server.server import Server

_SUSPEND_SECONDS = 0.1  # for the orders to be sent before this process stops
_PATIENT_STOPS = 2  # signals; after a third one hvdrun waits for nothing, not even for a host that is cut off
_HURRIED_CLOSE_SECONDS = 1.0  # even then: to close what answers quickly
_AGENT_START_SECONDS = 0.05  # a local agent is started in less; then it boots while hvdrun continues


def launch(
    spec: JobSpec,
    console: Console,
    dispatcher: "Dispatcher | None" = None,
    start: StartWatch | None = None,
    continuation: "Continuation | None" = None,
) -> int:
    """Run the job to its end, and return its exit code.

    Args:
        spec: the job.
        console: prints its output.
        dispatcher: gives functions to the workers, if they run any.
        start: is told how the start goes on, where somebody waits for it.
        continuation: what a former server of the job has left, and the next one needs, where there may be another.

    Raises:
        LaunchError: the job could not be started, its outcome cannot be written, or another job uses its checkpoints.
        KeyboardInterrupt: Ctrl-C was pressed, and the job has been stopped.
    """
    facts = JobFacts(console.job, redact_command(spec.workers.command), spec.usable_hosts)
    tell = partial(console.notice, level=Level.ERROR)
    history, age_seconds, is_next = None, 0.0, False
    if continuation is not None:
        (history, _), age_seconds = continuation.read_history(), continuation.age_seconds
        is_next = continuation.life.number > 1
    path, history = spec.display.outcome_file, history or History()
    file = OutcomeFile(path, facts, history, read_local_clock, tell, ago_seconds=age_seconds, is_next=is_next)

    async def run() -> Outcome:
        if spec.remote.joining is None:
            return await Job(spec, console, file, dispatcher, start=start, continuation=continuation).run()
        from hvdrun.joining.launcher import run_with_agents  # noqa: PLC0415 - other jobs go to their hosts

        return await run_with_agents(
            spec,
            spec.remote.joining,
            console,
            lambda roster: Job(spec, console, file, dispatcher, roster, start=start, continuation=continuation).run(),
            continuation,
        )

    with file, hold_checkpoints(spec.workers.checkpoint):
        if all(spec.is_remote(host.name) for host in spec.workers.hosts):
            refuse_scarcity("the launcher", THREADS)
        else:
            refuse_scarcity("a launcher with an agent", 2 * THREADS)
        outcome = asyncio.run(run())
    if outcome.is_interrupt:
        raise KeyboardInterrupt
    if file.is_lost:
        return outcome.exit_code or OUTPUT_LOST
    return outcome.exit_code


class AgentBugError(Exception):
    """A bug has stopped an agent."""


class Job:
    """One job, from the start of its agents to its last line of output.

    Args:
        spec: what is to run, and where.
        console: for its output.
        outcome_file: receives the outcome and the history.
        dispatcher: gives functions to the workers; None if they run a command.
        roster: the agents that join by themselves; None if the job starts its agents.
        start: calls once, when the job has started; None where no process waits for that.
        continuation: what a former server of the job has left, and the next one needs; None where there is no other.
    """

    def __init__(
        self,
        spec: JobSpec,
        console: Console,
        outcome_file: OutcomeFile,
        dispatcher: "Dispatcher | None" = None,
        roster: "Roster | None" = None,
        *,
        start: StartWatch | None = None,
        continuation: "Continuation | None" = None,
    ) -> None:
        self._id = console.job
        self._continuation = continuation
        self._outcome_file = outcome_file
        self._history = outcome_file.history
        self._started = time.monotonic()
        if continuation is not None:
            self._started -= continuation.age_seconds
        self._spec = spec
        self._console = console
        self._dispatcher = dispatcher
        self._start = start or StartWatch()

        has_remote_hosts = bool(spec.remote.hosts) or spec.discovers
        launcher_timeout_seconds = None
        if has_remote_hosts:
            launcher_timeout_seconds = spec.limits.effective_launcher_timeout_seconds

        self._tasks = BackgroundTasks()
        self._transports = Transports(roster, partial(console.notice, level=Level.WARNING))
        self._pool = AgentPool(self._tasks, self._show, self._lose, launcher_timeout_seconds)
        self._masters = Masters(self._pool.order)
        self._ranks = RankTable(lambda: self._server.state.generation)
        self._reporter = JobReporter(
            console,
            ago_seconds=0.0 if continuation is None else continuation.age_seconds,
            has_comparable_hosts=spec.has_comparable_hosts,
        )
        record = JobRecord.of(self._id, spec)
        self._stacks = JobStacks(record, self._pool.send, self._list_begun, self._list_ranks)
        hang_timeout_seconds = spec.limits.hang_timeout_seconds
        self._hold_ups = HoldUps(
            self._stacks.find, console.notice, self._give_up, self._is_current, hang_timeout_seconds
        )
        self._start_check = self._make_start_check()
        self._hosts = Hosts(
            spec,
            self._pool,
            console,
            reach=self._transports.make,
            adopt=self._transports.adopt,
            needs_ssh_agent=self._transports.needs_ssh_agent,
            examine=self._examine,
            roster=roster,
            continuation=continuation,
        )
        self._server: Server
        self._config: AgentConfig
        self._end: asyncio.Future[Finish] = asyncio.get_running_loop().create_future()
        self._writers: dict[Slot, Worker] = {}  # the worker of each slot that wrote last
        self._stops = StopRequests(os.getppid(), has_guardian=spec.display.detach)
        self._is_suspending = False
        self._is_closing = False
        self._stdin: StdinReader | None = None
        self._hurry = asyncio.Event()
        self._start_line = self._make_start_line()

    async def run(self) -> Outcome:
        """Run the job, and return its outcome."""
        report_callback_errors(self._fail)
        async with AsyncExitStack() as signals, AsyncExitStack() as stack:  # signals are handled to the end
            stack.push_async_callback(self._close_pool)
            stack.callback(self._transports.close)
            async with self._tasks:
                with self._until_closing():
                    self._tasks.create_task(self._reporter.run(), name="sum up losses")
                    bringing = self._tasks.create_task(self._hosts.run(), name="bring in the hosts")
                    await self._hosts.wait_started(_AGENT_START_SECONDS)

                    self._server, authority = await self._make_server(stack)
                    signals.enter_context(answer_signals(self._stop, self._suspend, self._note_notice, self._pass_on))
                    if self._continuation is not None:
                        self._take_over(self._continuation)
                    self._open_streams(stack)
                    self._stacks.open()
                    stack.push_async_callback(self._stacks.close)
                    stack.push_async_callback(self._hold_ups.close)
                    self._console.verbose(f"job {self._id}")
                    self._config = AgentConfig(self._spec, self._id, authority, self._console.verbose)
                    self._hosts.serve(self._server, self._config)

                    end = await self._end
                    await _cancel(bringing)
                    await self._finish(end)

        outcome = end.outcome
        self._history.end = end
        if self._dispatcher is not None:
            last_lines: tuple[str, ...] = ()
            if outcome.worker is not None:
                last_lines = self._console.output.tail(outcome.worker)
            await self._dispatcher.close(outcome, last_lines, self._outcome_file.render())

        lost = self._console.report_lost_output()
        outcome = replace(outcome, exit_code=outcome.exit_code or lost)
        self._history.end = replace(end, outcome=outcome)
        return outcome

    def _clock(self) -> float:
        """The seconds since the job's start."""
        return time.monotonic() - self._started

    def _open_streams(self, stack: AsyncExitStack) -> None:
        self._console.watch(self._stop, self._fail)
        if self._dispatcher is not None:
            self._dispatcher.open(self._ranks.find_rank, self._stop, lambda: self._server.state.outcome is not None)
        self._start_line.open(self._tasks, self._started)
        if self._start.is_awaited:
            self._tasks.create_task(self._start.run(lambda: self._server.state), name="look for the start")
        stack.callback(self._start_line.close)

    def _list_begun(self) -> tuple[str, ...]:
        return tuple(filter(self._pool.has_begun, self._pool.hosts))

    def _list_ranks(self) -> dict[Worker, int]:
        return {record.worker: self._ranks.find_rank(record.worker) for record in self._server.state.alive()}

    def _give_up(self, generation: int, rank: int, reason: str) -> None:
        """End a rank that holds up the others, unless its generation has ended."""
        present = self._server.state.generation
        if present is not None and self._is_current(generation):
            worker = present.members[rank]
            self._pool.send(worker.slot.host, GiveUp(worker, reason))

    def _is_current(self, generation: int) -> bool:
        state = self._server.state
        return state.outcome is None and state.number == generation

    def _make_start_check(self) -> "StartCheck | None":
        """What examines the hosts; None if all are this machine."""
        if not (self._spec.remote.hosts or self._spec.discovers):
            return None
        from hvdrun.hosts.start_check import StartCheck  # noqa: PLC0415 - a job on this machine does without it

        return StartCheck(self._spec, self._pool.send, partial(self._console.notice, level=Level.WARNING))

    def _examine(self, host: str) -> None:
        if self._start_check is not None:
            self._start_check.ask(host)

    def _make_start_line(self) -> StartLine | StartNotice:
        """A program that calls hvdrun.run() prints while its workers start, so that no line can be redrawn there."""
        if self._dispatcher is None:
            limit_seconds = self._spec.limits.start_timeout_seconds
            return self._console.make_start_line(lambda: self._server.state.start_progress, limit_seconds)
        dispatcher, workers = self._dispatcher, self._spec.workers
        hosts = [host.name for host in workers.hosts]
        return self._console.make_start_notice(
            lambda: dispatcher.ready, workers.size, hosts, is_watched=dispatcher.is_watched
        )

    async def _finish(self, end: Finish) -> None:
        """Release the agents, and print all output that has come from them.

        Raises:
            Exception: a bug has ended the job.
        """
        bug = self._hosts.find_bug(end.outcome)
        exit_code = CANNOT_LAUNCH
        if bug is None:
            exit_code = end.outcome.exit_code

        releasing = self._pool.release(lambda host: is_lost(self._server.state, host), exit_code)
        await self._unless_hurried(releasing)

        self._console.output.finish_all()
        for line in render_table(self._history):
            self._console.verbose(line)
        if self._dispatcher is None and bug is None:
            self._tell_goodput()
            self._tell_unseen(end.outcome)
            self._reporter.explain(end)
        await self._unless_hurried(self._console.output.close(limit_seconds=None))
        await self._console.output.close(limit_seconds=0)  # has an effect only after a signal has cut the wait short

        if bug is not None:
            raise bug

    def _tell_goodput(self) -> None:
        if (goodput := describe_goodput(self._history, self._clock())) is not None:
            self._console.notice(goodput)

    def _tell_unseen(self, outcome: Outcome) -> None:
        """A program that fails early has not come to its hvd.init()."""
        is_plain = not self._server.state.published and (not outcome.exit_code or outcome.is_interrupt)
        if is_plain and (line := describe_unseen(self._spec)) is not None:
            self._console.notice(line, Level.WARNING)

    def _open_stdin(self, host: str) -> StdinReader:
        """Read standard input for the worker on this host that gets it."""
        is_typed = os.isatty(0)

        def feed(data: bytes) -> None:
            if is_typed and data.endswith(b"\n"):
                self._console.output.note_typed_line()
            self._pool.send(host, Input(data))

        reader = StdinReader(feed)
        self._tasks.create_task(reader.run(), name="read standard input")
        return reader

    async def _make_server(self, stack: AsyncExitStack) -> "tuple[Server, Authority]":
        from rendezvous.server.authority import Authority  # noqa: PLC0415 - the agents boot meanwhile
        from rendezvous.server.server import Server  # noqa: PLC0415 - the agents boot meanwhile

        continuation = self._continuation
        if continuation is None:
            authority = Authority(self._id)
        else:
            authority = Authority(self._id, continuation.keep_authority(lambda: Authority(self._id).key))
        policy = self._spec.policy()
        # A function that is lost with its worker is not called again.
        if self._dispatcher is not None:
            policy = replace(policy, restarts=Restarts())
        term = None if continuation is None else continuation.make_term()
        server = Server(policy, self._carry_out, authority.issue_server(), self._dispatcher, self._note_step, term=term)
        return await stack.enter_async_context(server), authority

    def _take_over(self, continuation: "Continuation") -> None:
        """Go on where a former server of the job was killed, if there was one."""
        continuation.life.decide_end()
        continuation.follow_guardian()
        state = continuation.state
        if state is None:
            continuation.life.answer_signals()
            return
        self._ranks.restore(self._history.list_ranks())
        self._ranks.restore({record.worker: record.assignment.rank for record in state.workers.values()})
        self._history.resume(self._server.state, self._clock())
        if state.round_hosts:
            self._masters.restore(state.rounds, state.round_hosts[0])
        unheard = unheard_hosts(self._server.state) if state.outcome is None else ()
        self._console.notice(continuation.describe(unheard), Level.WARNING)
        for loss in self._history.list_untold(state):
            self._reporter.log(Log(loss.reason.rstrip("."), Level.WARNING, loss.host))
        self._start.resume(self._server.state, continuation.age_seconds if continuation.life.killed_by else None)
        continuation.life.answer_signals()

    def _carry_out(self, effect: Effect) -> None:
        self._reporter.tell(effect)

        match effect:
            case Launch(worker) if not self._hosts.is_over:
                self._ranks.note_launch(effect)
                self._reporter.note_launch(effect)
                if self._stdin is None and effect.assignment.rank == self._spec.workers.stdin_rank:
                    self._stdin = self._open_stdin(worker.slot.host)
                self._hosts.want(worker.slot.host)
                self._masters.order(effect)
            case Terminate():
                self._terminate(effect)
            case Dismiss():
                if self._start_check is not None:
                    self._start_check.forget(effect.host)
                self._hosts.dismiss(effect)
                if effect.is_lost and self._console.files is not None:
                    self._console.files.note_lost_host(effect.host)
            case Notify(host):
                self._start_line.close()
                if host is None:
                    self._pool.stop()
            case Finish() if not self._end.done():
                self._reporter.decide()
                self._end.set_result(effect)
            case _:
                pass

    def _note_step(self, event: Event | None, state: State, effects: Effects) -> None:
        known = self._history.count()
        self._history.note(event, state, effects, self._clock())
        if self._console.files is not None:
            _note_in_files(self._console.files, event, effects)
        self._keep_history(has_changed=self._history.count() != known or isinstance(event, Exited))

    def _keep_history(self, *, has_changed: bool) -> None:
        if self._continuation is not None and has_changed:
            index = None if self._console.files is None else self._console.files.index
            self._continuation.keep_history(self._history, index)

    def _terminate(self, effect: Terminate) -> None:
        worker, host = effect.worker, effect.worker.slot.host
        if self._server.state.outcome is not None:
            self._reporter.decide()
        elif self._server.state.restart is not None:
            self._reporter.note_stop()
        is_waiting = self._masters.withdraw(worker)
        if self._pool.has_begun(host) and not is_waiting:
            self._pool.order(effect)
        elif host in self._pool.hosts:
            self._server.submit(self._pool.withdraw(worker))

    async def _show(self, host: str, message: AgentMessage) -> None:  # noqa: C901 - one case for each kind of message
        match message:
            case Output(worker, stream, data):
                self._start_line.close()
                self._note_writer(worker)
                await self._console.output.write(worker, self._ranks.find_rank(worker), stream, data)
            case Remark(text):
                self._console.verbose(text, host)
            case Alert(text):
                self._console.notice(text, Level.WARNING, host)
            case AgentFailed(text, trace):
                self._note_failed_agent(host, text, trace)
            case Written(worker, number) if self._dispatcher is not None:
                await self._console.output.finish_task(worker)
                self._dispatcher.note_written(worker, number)
            case Taken() if self._stdin is not None:
                self._stdin.ask()
            case Started(worker):
                self._reporter.note_started(worker)
                self._note_running(worker)
                self._keep_history(has_changed=self._history.note_started(worker, self._clock()))
            case AccountsReported():
                self._keep_history(has_changed=self._history.note_accounts(message))
            case Reserved():
                self._masters.note_reserved(message)
            case Stacks():
                self._stacks.note(host, message)
            case WaitsReported(waits):
                self._hold_ups.note(waits)
            case Examined(facts) if self._start_check is not None:
                self._start_check.note(host, facts)

    def _note_running(self, worker: Worker) -> None:
        note = partial(self._start.note_running, worker)
        if self._continuation is None:
            note()
        else:
            host = worker.slot.host
            self._continuation.note_begun(agent_identity(host, self._server.number_agent(host)), note)

    def _note_failed_agent(self, host: str, text: str, trace: str) -> None:
        """An agent without a traceback lacks a resource; any other has a bug."""
        if not trace:
            self._hosts.refuse(host, LaunchError(text))
            return
        bug = AgentBugError(text)
        bug.add_note(trace)
        self._hosts.tolerate(host, bug, f"{text}\n{trace}")

    def _note_writer(self, worker: Worker) -> None:
        """When the next worker of a slot writes, the output of the former one is complete."""
        former = self._writers.get(worker.slot, worker)
        if former.incarnation < worker.incarnation:
            self._console.output.forget(former)
            self._ranks.forget(former)
        if former.incarnation <= worker.incarnation:
            self._writers[worker.slot] = worker

    def _lose(self, host: str, how: str) -> None:
        self._hosts.lose(host, how)

    def _stop(self, code: int, reason: str) -> None:
        """Stop the job: at first with the grace, the second time without it, and from the third on without waiting."""
        if not self._stops.note(code):
            return
        stops = self._stops.count
        if self._end.done() or self._is_closing or stops > _PATIENT_STOPS:
            self._hurry.set()
        if self._is_closing:
            return
        if stops == 1 and stop(code, reason).is_interrupt:
            self._reporter.note_interrupt(len(self._server.state.alive()))
        self._server.submit(Stopped(code, reason, immediately=stops == _PATIENT_STOPS))
        if stops > _PATIENT_STOPS and not self._end.done():
            state = self._server.state
            self._end.set_result(explain_end(state, state.outcome or stop(code, reason)))

    def _fail(self, error: BaseException) -> None:
        if not self._end.done():
            self._end.set_exception(error)

    def _note_notice(self) -> None:
        if not self._is_closing:
            self._server.submit(Noticed(None))

    def _pass_on(self, number: int) -> None:
        if not self._is_closing:
            self._pool.pass_on(PassOn(number))

    def _suspend(self, number: int) -> None:
        """Ctrl-Z: stop hvdrun until `fg`. The workers continue: their agents do not take the silence for a death."""
        self._start_line.close()
        if self._is_closing:
            stop_process(number)
        elif not self._is_suspending:
            self._is_suspending = True
            self._pool.hold(held=True)
            asyncio.get_running_loop().call_later(_SUSPEND_SECONDS, self._stop_until_resumed, number)

    def _stop_until_resumed(self, number: int) -> None:
        stop_process(number)
        self._is_suspending = False
        if not self._is_closing:
            self._pool.hold(held=False)

    @contextmanager
    def _until_closing(self) -> Iterator[None]:
        """Once the outcome is decided, or the job has failed, a signal means: do not wait."""
        try:
            yield
        finally:
            self._is_closing = True

    async def _unless_hurried(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Wait, for example for a reader of the output that pauses, until a signal cuts the wait short."""
        async with BackgroundTasks() as tasks:
            wait = tasks.create_task(waiting, name="wait for what a signal may cut short")
            hurry = tasks.create_task(self._hurry.wait(), name="wait for a signal")
            await asyncio.wait({wait, hurry}, return_when=asyncio.FIRST_COMPLETED)

    async def _close_pool(self) -> None:
        closing = asyncio.create_task(self._pool.close(), name="close the agents")
        try:
            await self._unless_hurried(asyncio.wait({closing}))
        finally:
            await asyncio.wait({closing}, timeout=_HURRIED_CLOSE_SECONDS)
            await _cancel(closing)
        if not closing.cancelled():
            closing.result()


def _note_in_files(files: OutputFiles, event: Event | None, effects: Effects) -> None:
    if isinstance(event, Exited):
        files.note_end(event.worker, event.returncode)
    for effect in effects:
        match effect:
            case Launch():
                files.note_launch(effect)
            case Publish():
                files.note_ranks(effect.generation.members)
            case _:
                pass


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait until it has stopped."""
    task.cancel()
    await asyncio.wait({task})
