"""Tasks beside their owner: none outlives its block, and an error in one ends the block."""

import asyncio
import threading

import pytest

from hvdrun.errors import LaunchError
from hvdrun.processes.background import BackgroundTasks, cancel_and_wait, in_thread, raise_error, report_callback_errors
from tests.waiting import LIMIT_SECONDS, in_loop


async def fail(error: Exception) -> None:
    raise error


async def run_beside(*errors: Exception) -> None:
    """A block that waits while tasks fail with these errors."""
    async with BackgroundTasks() as tasks:
        for error in errors:
            tasks.create_task(fail(error))
        await asyncio.Event().wait()


@in_loop
async def test_tasks_without_an_end_are_cancelled_at_the_end_of_the_block() -> None:
    async with BackgroundTasks() as tasks:
        task = tasks.create_task(asyncio.Event().wait(), name="waits")
    assert (task.cancelled(), task.get_name()) == (True, "waits")


@in_loop
async def test_an_error_in_a_task_ends_the_block_and_is_raised_as_it_is() -> None:
    error = ZeroDivisionError("of a task")
    with pytest.raises(ZeroDivisionError) as caught:
        await run_beside(error)
    assert caught.value is error
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@in_loop
async def test_an_error_of_the_block_is_raised_as_it_is() -> None:
    async def fail_itself() -> None:
        async with BackgroundTasks() as tasks:
            tasks.create_task(asyncio.Event().wait())
            await fail(ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        await fail_itself()


@in_loop
async def test_of_several_errors_the_unexpected_one_is_raised_and_the_others_are_noted() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        await run_beside(LaunchError("no host"), ZeroDivisionError())
    (note,) = caught.value.__notes__
    assert "LaunchError: no host" in note


@in_loop
async def test_of_several_unexpected_errors_the_first_is_raised() -> None:
    async def fail_itself() -> None:
        async with BackgroundTasks() as tasks:
            tasks.create_task(fail_when_cancelled())
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await fail_itself()
    (note,) = caught.value.__notes__
    assert "ValueError: cannot clean up" in note


@in_loop
async def test_a_task_that_is_created_while_the_group_ends_is_cancelled_before_it_begins() -> None:
    created: list[asyncio.Task[None]] = []

    async def run() -> None:
        async with BackgroundTasks() as tasks:

            async def end_with_another() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    created.append(tasks.create_task(fail(ValueError())))

            tasks.create_task(end_with_another())
            await asyncio.sleep(0)
            tasks.create_task(fail(LaunchError("no host"))).add_done_callback(
                lambda _: created.append(tasks.create_task(fail(ValueError())))
            )
            await asyncio.Event().wait()

    with pytest.raises(LaunchError, match="no host") as caught:
        await run()
    assert not hasattr(caught.value, "__notes__")
    await asyncio.wait(created)
    assert [task.cancelled() for task in created] == [True, True]


@in_loop
async def test_the_errors_of_callbacks_and_of_tasks_without_an_owner_are_reported() -> None:
    reported: asyncio.Queue[BaseException] = asyncio.Queue()
    report_callback_errors(reported.put_nowait)
    asyncio.get_running_loop().call_soon(lambda: dict[str, str]()["callback"])
    assert isinstance(await reported.get(), KeyError)
    asyncio.create_task(fail(ZeroDivisionError())).add_done_callback(raise_error)
    assert isinstance(await reported.get(), ZeroDivisionError)


async def fail_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("cannot clean up")


@in_loop
async def test_an_error_of_a_cancelled_task_is_reported_when_all_tasks_have_stopped() -> None:
    reported: list[BaseException] = []
    report_callback_errors(reported.append)
    tasks = [asyncio.create_task(work) for work in (fail_when_cancelled(), asyncio.Event().wait())]
    await asyncio.sleep(0)
    await cancel_and_wait(tasks)
    assert [task.done() for task in tasks] == [True, True]
    assert [str(error) for error in reported] == ["cannot clean up"]


@in_loop
async def test_an_error_from_before_the_cancellation_is_left_to_the_caller() -> None:
    reported: list[BaseException] = []
    report_callback_errors(reported.append)
    task = asyncio.create_task(fail(ValueError("early")))
    await asyncio.wait({task})
    await cancel_and_wait({task})
    assert reported == []
    with pytest.raises(ValueError, match="early"):
        await task


@in_loop
async def test_a_call_returns_or_raises_where_it_is_waited_for() -> None:
    assert await in_thread(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


@in_loop
async def test_a_call_whose_caller_is_cancelled_is_aborted() -> None:
    released = threading.Event()
    ended = threading.Event()

    def work() -> None:
        released.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(work, abort=released.set)
    assert ended.wait(LIMIT_SECONDS)


def test_a_call_that_never_ends_does_not_hold_up_the_loop_s_end() -> None:
    stuck = threading.Event()

    async def scenario() -> None:
        waiting = asyncio.create_task(in_thread(stuck.wait))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(scenario())
    stuck.set()  # its result comes to a loop that has closed
