"""`python docs/signals.py`: writes the table of signals of docs/reference/exit-codes.md.

With `--check` it writes nothing, and exits with 1 where the page is out of date. `tests/system/test_signals.py` sends
each signal of CELLS to a real job, and compares.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent / "reference" / "exit-codes.md"
START, END = "<!-- signals -->", "<!-- /signals -->"
TARGETS = {"hvdrun": "hvdrun", "agent": "an agent", "worker": "a worker", "all": "all processes at once"}
PHASES = {"starting": "while the job starts", "ending": "while the workers end after SIGTERM"}


class Effect(NamedTuple):
    """What a signal does.

    codes: the return codes of hvdrun as its parent sees them, -n for signal n: two where two signals of one moment
        allow two endings. None: the job goes on.
    word: what each worker prints that handles SIGTERM, SIGINT and SIGHUP by saving, and SIGUSR1 by "got it".
    """

    text: str
    codes: tuple[int, ...] = ()
    word: str = ""


class Cell(NamedTuple):
    """What happens when these signals are sent, one right after the other."""

    signals: tuple[str, ...]
    target: str
    effect: Effect
    phase: str = "training"


def _ask(code: int, *others: int) -> Effect:
    return Effect(f"the workers have `--grace` to end; {code if code > 0 else 128 - code}", (code, *others), "saved")


def _die(code: int) -> Effect:
    return Effect(f"the program's own; by default it ends, and the job with it: {code}", (code,))


NOTHING = Effect("nothing")
OWN_NOTHING = Effect("the program's own; nothing in Python")
SUSPENDED = Effect("hvdrun stops until `fg`, the workers go on; nothing without a shell", word="stopped")
HANDED = Effect("goes to the main process of each worker", word="got it")
NOTICE = Effect("[a stop notice](../guides/stop-save-resume.md): 75, or 143 after `--grace`", (143,), "saved")
KILLED = Effect("the workers are killed at once; 137", (-9,))

TABLE: dict[str, tuple[Effect, Effect, Effect, Effect]] = {
    "INT": (_ask(-2), _ask(130), _die(130), _ask(-2, 130)),
    "QUIT": (
        Effect("the workers are killed at once; 131", (-3,)),
        Effect("the workers there are killed at once, as of a lost host; 75", (75,)),
        _die(131),
        Effect("everything is killed at once; 131", (-3,)),
    ),
    "TERM": (_ask(143), _ask(143), _die(143), _ask(143)),
    "HUP": (_ask(129), _ask(129), _die(129), _ask(129)),
    "USR1": (HANDED, Effect("goes to the main process of its workers", word="got it"), _die(138), HANDED),
    "USR2": (NOTICE, NOTICE, Effect("a stop notice", (75,)), Effect("a stop notice", (75, 143))),
    "TSTP": (SUSPENDED, NOTHING, NOTHING, NOTHING),
    "TTIN": (SUSPENDED, NOTHING, NOTHING, NOTHING),
    "TTOU": (SUSPENDED, NOTHING, NOTHING, NOTHING),
    "CONT": (NOTHING, NOTHING, NOTHING, NOTHING),
    "PIPE": (NOTHING, NOTHING, OWN_NOTHING, NOTHING),
    "TERM, HUP": (_ask(143), _ask(143, 129), _die(143), _ask(143)),
    "TERM, KILL": (
        KILLED,
        Effect("as of a lost host: the workers there are killed; 75, or 143", (75, 143)),
        _die(143)._replace(codes=(137, 143)),
        KILLED._replace(codes=(-9, 143)),
    ),
}
AT_ONCE = "ends the wait for the workers"
LATER: dict[str, dict[str, tuple[Effect, Effect]]] = {
    "starting": {
        "INT": (_ask(-2), _ask(130)),
        "TERM": (_ask(143), _ask(143)),
        "HUP": (_ask(129), _ask(129)),
        "TSTP": (SUSPENDED, NOTHING),
    },
    "ending": {
        "INT": (Effect(f"{AT_ONCE}; 143", (143,)), Effect("nothing more; 143", (143,), "saved")),
        "TERM": (Effect(f"{AT_ONCE}; 143", (143,)), Effect("nothing more; 143", (143,), "saved")),
        "HUP": (Effect("nothing more; 143", (143,), "saved"), Effect("nothing more; 143", (143,), "saved")),
    },
}
CELLS = [
    *(
        Cell(tuple(names.split(", ")), target, effect)
        for names, effects in TABLE.items()
        for target, effect in zip(TARGETS, effects, strict=True)
    ),
    *(
        Cell((name,), target, effect, phase)
        for phase, rows in LATER.items()
        for name, effects in rows.items()
        for target, effect in zip(("hvdrun", "agent"), effects, strict=True)
    ),
]


def render() -> Iterator[str]:
    """The lines of the tables."""
    yield f"| signal | to {' | to '.join(TARGETS.values())} |"
    yield "|---" * (len(TARGETS) + 1) + "|"
    for names, effects in TABLE.items():
        name = ", then ".join(f"SIG{name}" for name in names.split(", "))
        yield f"| {name} | {' | '.join(effect.text for effect in effects)} |"
    yield ""
    yield "In other phases of a job:"
    yield ""
    yield "| phase | signal | to hvdrun | to an agent |"
    yield "|---|---|---|---|"
    for phase, rows in LATER.items():
        for name, pair in rows.items():
            yield f"| {PHASES[phase]} | SIG{name} | {pair[0].text} | {pair[1].text} |"


def replace_table(page: str) -> str:
    """The page with the present table.

    Raises:
        ValueError: the page has no markers.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{PAGE} needs the markers {START} and {END}")
    return f"{before}{START}\n" + "\n".join(render()) + f"\n{END}{after}"


def main() -> int:
    """Write the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    new = replace_table(page)
    if "--check" in sys.argv[1:]:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
