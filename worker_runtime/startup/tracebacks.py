"""Leaves this package's frames out of the traceback of an error of ours that ends the program: the user's stay."""

import sys
from collections.abc import Iterator
from types import TracebackType

_OURS = frozenset({"worker_runtime", "horovod"})


def shorten_tracebacks() -> None:
    """From now on; to be called once. What is not raised by this package is shown as ever."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if _is_ours(kind.__module__):
            shorten(error)
            traceback = error.__traceback__
        hook(kind, error, traceback)

    sys.excepthook = show


def shorten(error: BaseException) -> None:
    """Leave our frames out, where there are others; and an error before it that was raised and handled among them."""
    kept: TracebackType | None = None
    for each in reversed(list(_list_others(error.__traceback__))):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = kept or error.__traceback__
    former = error.__context__
    if former is not None and not any(_list_others(former.__traceback__)):
        error.__suppress_context__ = True


def _list_others(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        if not _is_ours(traceback.tb_frame.f_globals.get("__name__", "")):
            yield traceback
        traceback = traceback.tb_next


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS
