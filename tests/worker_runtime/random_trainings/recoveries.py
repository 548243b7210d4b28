"""Recoveries of an elastic job without a loss: the generation is another one, with the same members."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from worker_runtime.coordination.operation import Handle, Operation
from worker_runtime.engine.losses import Retry
from worker_runtime.errors import StepRevokedError
from worker_runtime.membership.runtime import RUNTIME


def make_elastic() -> None:
    """Let the present engine be one of an elastic job, which loses no rank."""
    engine = RUNTIME.engine
    engine.retry = engine.in_flight._retry = Retry(lambda *_: None)
    engine.is_elastic = True


def recover() -> None:
    """Between two statements of the program, at the same place on each rank."""
    RUNTIME.engine.generation += 1


@contextmanager
def revoking(*, is_early: bool) -> Iterator[None]:
    """The first step that is taken here is revoked when it is to be completed.

    is_early: as soon as the replicas are compared, where they are.
    """
    engine = RUNTIME.engine
    plain = {name: getattr(engine, name) for name in ("complete_step", "submit", "wait")}

    def revoke() -> None:
        for name in plain:
            vars(engine).pop(name, None)
        engine.generation += 1
        raise StepRevokedError

    def submit(operation: Operation[Any], **settings: bool) -> Handle[Any]:
        if operation.request.name.endswith(".step"):  # of Adasum
            revoke()
        return plain["submit"](operation, **settings)

    def wait(handle: Handle[Any]) -> object:
        found = plain["wait"](handle)
        if is_early and handle.operation.request.name.endswith(".replicas"):
            revoke()
        return found

    hooks: dict[str, Callable[..., Any]] = {"complete_step": lambda _: revoke(), "submit": submit, "wait": wait}
    vars(engine).update(hooks)
    try:
        yield
    finally:
        for name in plain:
            vars(engine).pop(name, None)
