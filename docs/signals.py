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
PHASES = {
    "starting": "while the job starts",
    "recovering": "while an elastic job starts a worker in place of a lost one",
    "elastic": "while an elastic job trains on several hosts",
    "ending": "while the workers end after SIGTERM",
    "process 1": "where hvdrun is process 1 of a container",
    "terminal": "where Ctrl-C or Ctrl-Z is typed on a terminal",
}


class Effect(NamedTuple):
    """What a signal does.

    codes: the return codes of hvdrun as its parent sees them, -n for signal n: two where two signals of one moment
        allow two endings. None: the job goes on.
    word: what each worker prints that handles SIGTERM, SIGINT and SIGHUP by saving, and SIGUSR1 by "got it"; or what
        becomes of hvdrun or the host.
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
    "XCPU": (
        _ask(152),
        _ask(152),
        _die(152),
        Effect("the program's own; workers that it does not end have `--grace` to end; 152", (152,)),
    ),
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
LEFT = Effect("its workers have `--grace` to end, and the others go on without this host", word="left")
# By phase and signal: the effects by target.
LATER: dict[str, dict[str, dict[str, Effect]]] = {
    "starting": {
        "INT": {"hvdrun": _ask(-2), "agent": _ask(130)},
        "TERM": {"hvdrun": _ask(143), "agent": _ask(143)},
        "HUP": {"hvdrun": _ask(129), "agent": _ask(129)},
        "TSTP": {"hvdrun": SUSPENDED, "agent": NOTHING},
    },
    "recovering": {
        "INT": {"hvdrun": _ask(-2), "agent": _ask(130)},
        "TERM": {"hvdrun": _ask(143), "agent": _ask(143)},
        "TSTP": {"hvdrun": SUSPENDED, "agent": NOTHING},
    },
    "elastic": {
        "INT": {"agent": LEFT},
        "TERM": {"agent": LEFT},
        "HUP": {"agent": LEFT},
        "TERM, KILL": {
            "agent": Effect("as of a lost host: the workers there are killed, and the others go on", word="lost")
        },
    },
    "ending": {
        "INT": {
            "hvdrun": Effect(f"{AT_ONCE}; 143", (143,)),
            "agent": Effect("nothing more; 143", (143,), "saved"),
        },
        "TERM": {
            "hvdrun": Effect(f"{AT_ONCE}; 143", (143,)),
            "agent": Effect("nothing more; 143", (143,), "saved"),
        },
        "HUP": {
            "hvdrun": Effect("nothing more; 143", (143,), "saved"),
            "agent": Effect("nothing more; 143", (143,), "saved"),
        },
    },
    "process 1": {
        "INT": {"hvdrun": _ask(130), "all": _ask(130)},
        "TERM": {"hvdrun": _ask(143), "all": _ask(143)},
        "TSTP": {"hvdrun": NOTHING},
    },
    "terminal": {
        "INT": {"hvdrun": _ask(-2)},
        "TSTP": {"hvdrun": SUSPENDED},
    },
}
CELLS = [
    *(
        Cell(tuple(names.split(", ")), target, effect)
        for names, effects in TABLE.items()
        for target, effect in zip(TARGETS, effects, strict=True)
    ),
    *(
        Cell(tuple(names.split(", ")), target, effect, phase)
        for phase, rows in LATER.items()
        for names, effects in rows.items()
        for target, effect in effects.items()
    ),
]


def render() -> Iterator[str]:
    """The lines of the tables."""
    yield f"| signal | to {' | to '.join(TARGETS.values())} |"
    yield "|---" * (len(TARGETS) + 1) + "|"
    for names, effects in TABLE.items():
        yield f"| {_name(names)} | {' | '.join(effect.text for effect in effects)} |"
    yield ""
    same = [PHASES[phase] for phase in LATER if not any(True for _ in _find_differences(phase))]
    yield f"The same happens {', '.join(same[:-1])}, and {same[-1]}. These differ:"
    yield ""
    yield "| when | signal | to | effect |"
    yield "|---|---|---|---|"
    for phase in LATER:
        for names, text, targets in _find_differences(phase):
            to = " or ".join(TARGETS[target] for target in targets)
            yield f"| {PHASES[phase]} | {_name(names)} | {to} | {text} |"


def _find_differences(phase: str) -> Iterator[tuple[str, str, list[str]]]:
    """The signals that do something else in this phase than while training: what, and to which targets."""
    for names, effects in LATER[phase].items():
        usual = dict(zip(TARGETS, (effect.text for effect in TABLE[names]), strict=True))
        for text in dict.fromkeys(effect.text for effect in effects.values()):
            if targets := [to for to, effect in effects.items() if effect.text == text != usual[to]]:
                yield names, text, targets


def _name(names: str) -> str:
    return ", then ".join(f"SIG{name}" for name in names.split(", "))


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
