"""Completes the command lines of hvdrun in a shell; click has the scripts for the shells.

Only `--completion`, and a shell that completes words, import this module.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import EnumType

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from hvdrun.errors import UsageError
from hvdrun.options import flags, horovodrun, torchrun
from hvdrun.options.kinds import FILE_NAME, FOLDER_NAME
from hvdrun.options.option import Option
from hvdrun.options.programs import AGENT, DOCTOR, JOB_PROGRAMS, STACKS, TIMELINE, TOKEN
from hvdrun.options.table import BY_DEST, COMPLETION_VARIABLE, OPTIONS
from hvdrun.options.words import Typed

Items = list[CompletionItem[str]]

ALL = "all"  # after --help
_BREAKS = frozenset(":=")  # bash separates words there
_PLACES = {FILE_NAME: "file", FOLDER_NAME: "dir"}
_Line = tuple[Callable[[str], Typed], Sequence[Option]]  # what finds the option that a word names, and all options
_HVDRUN: _Line = (flags.find_option, OPTIONS)
PROGRAMS: Mapping[str, _Line] = {
    "agent": (AGENT.find_option, AGENT.options),
    "doctor": (DOCTOR.find_option, (*DOCTOR.options, *OPTIONS)),
    "stacks": (STACKS.find_option, STACKS.options),
    "timeline": (TIMELINE.find_option, TIMELINE.options),
    "token": (TOKEN.find_option, TOKEN.options),
    **{name: (program.find_option, program.options) for name, program in JOB_PROGRAMS.items()},
    "horovodrun": (horovodrun.find_option, horovodrun.OPTIONS),
    "torchrun": (torchrun.find_option, torchrun.OPTIONS),
}


def render_script(shell: str, program: str = "hvdrun") -> str:
    """The script that makes a shell complete the command line of a program.

    Raises:
        BadValueError: there is no such shell.
    """
    shell = str(BY_DEST["completion"].read(shell, "--completion"))
    return _make_shell(shell, program).source()


def answer_shell(instruction: str, program: Sequence[str]) -> str:
    """The words that may follow in a shell's command line, in the form of click's script.

    instruction: the value of the variable, such as "bash_complete". program: the arguments of this process,
    ["horovodrun"] where the shell completes that program.
    """
    shell = instruction.partition("_")[0]
    of_click = _make_shell(shell, "hvdrun")
    words, incomplete = of_click.get_completion_args()
    in_bash = shell == "bash"
    if in_bash:
        *words, incomplete = join_words([*words, incomplete])
    items = list_completions([*program, *words], incomplete, keeps_flag=not in_bash)
    return "\n".join(map(of_click.format_completion, items))


def _make_shell(shell: str, program: str) -> ShellComplete:
    """What click knows of a shell.

    Raises:
        ValueError: it knows nothing.
    """
    found = get_completion_class(shell)
    if found is None:
        raise ValueError(f"click completes no words in {shell}")
    return found(click.Command(program), {}, program, COMPLETION_VARIABLE)


def join_words(pieces: Sequence[str]) -> list[str]:
    """The words of a line that bash has separated at : and =, too, as in `--np = 2`."""
    words: list[str] = []
    follows_break = True
    for piece in pieces:
        is_break = piece != "" and _BREAKS.issuperset(piece)
        if words and piece and (is_break or follows_break):
            words[-1] += piece
        else:
            words.append(piece)
        follows_break = is_break
    return words


def list_completions(words: Sequence[str], incomplete: str, *, keeps_flag: bool = True) -> Items:
    """What may replace the incomplete word: flags, values, or files, which the shell finds.

    Args:
        words: those before it, without the name of the program.
        incomplete: the word, or its beginning.
        keeps_flag: the value of `--flag=value` is listed with its flag.
    """
    find, options = _HVDRUN
    rest = list(words)
    if rest and rest[0] in PROGRAMS:
        find, options = PROGRAMS[rest.pop(0)]

    given: list[Option] = []
    try:
        while rest:
            word = rest.pop(0)
            if word in {"-", "--"} or not word.startswith("-"):
                return [CompletionItem(incomplete, type="file")]
            option, _, values = find(word)
            missing = option.arity - len(values)
            if len(rest) < missing:
                return _list_values(option, incomplete)
            del rest[:missing]
            given.append(option)
        flag, equals, value = incomplete.partition("=")
        if incomplete.startswith("-") and equals:
            return _list_values(find(flag).option, value, f"{flag}=" if keeps_flag else "")
    except UsageError:  # a flag is wrong
        return []

    if given and given[-1].dest == "help" and find is _HVDRUN[0]:
        return [CompletionItem(ALL)] if ALL.startswith(incomplete) else []
    if not incomplete.startswith("-"):
        programs = []
        if not words:
            programs = [CompletionItem(name) for name in PROGRAMS if name.startswith(incomplete)]
        # Files come first: click's script for bash drops what is before them.
        return [CompletionItem(incomplete, type="file"), *programs]

    return [
        CompletionItem(flag, help=option.help)
        for option in options
        if option.repeats or option not in given
        for flag in option.flags
        if flag.startswith(incomplete)
    ]


def _list_values(option: Option, incomplete: str, before: str = "") -> Items:
    """The values that begin so; the shell itself finds files and folders."""
    if option.kind is None:
        return []
    if isinstance(option.kind.parse, EnumType):
        values = [str(each.value) for each in option.kind.parse]  # type: ignore[var-annotated]  # an Enum's members
        return [CompletionItem(f"{before}{value}") for value in values if value.startswith(incomplete)]
    place = _PLACES.get(option.kind.metavar)
    if place is None:
        return []
    return [CompletionItem(incomplete, type=place)]
