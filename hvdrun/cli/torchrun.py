"""`hvdrun torchrun`: a job, or a page: --help, and with --dry-run the command line of hvdrun that means the same."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hvdrun.errors import UsageError
from hvdrun.options.option import RawValues
from hvdrun.options.pages import describe, render_help
from hvdrun.options.request import make_job
from hvdrun.options.table import BY_DEST
from hvdrun.options.torchrun import OPTIONS, check_slots, note_variables, parse, translate
from hvdrun.spec.jobspec import JobSpec

ABOUT = (
    "hvdrun with the options of torchrun, run once for all hosts, which -H or --hostfile names. You may shorten the "
    "long forms, and write _ for -."
)


def read_request(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> JobSpec | str:
    """The job that torchrun's command line asks for, or the page that answers it.

    Raises:
        HvdrunError: the command line is wrong, or names something that does not exist.
    """
    typed, rest = parse(words)
    if any(each.option.acts for each in typed):
        return render_help("hvdrun torchrun [options] SCRIPT [arguments]", ABOUT, [("Options", describe(OPTIONS))])

    meant = translate(typed, rest)
    only_shows = meant.given.pop("dry_run", False)
    spec = make_job(meant.given, meant.command, environment, lambda _: meant.nodes * meant.per_node)
    if "hostfile" in meant.given:
        check_slots(spec.workers.hosts, meant.per_node)

    has_hosts = spec.remote.allocation is not None or not {"hosts", "hostfile"}.isdisjoint(meant.given)
    if meant.nodes > 1 and not has_hosts:
        raise UsageError(
            f"--nnodes wants hosts, and none is named: name them with -H server1:{meant.per_node},"
            f"server2:{meant.per_node}, and run this command once, on one host."
        )

    if only_shows:
        return compose_line(meant.given, meant.command)
    remarks = (*meant.remarks, *note_variables(typed, environment), *spec.display.remarks)
    return replace(spec, display=replace(spec.display, remarks=remarks))


def compose_line(given: Mapping[str, RawValues], command: Sequence[str]) -> str:
    """The command line of hvdrun with these values by dest, quoted for a shell."""
    words = ["hvdrun"]
    for dest, value in given.items():
        words.append(BY_DEST[dest].flags[0])
        if value is not True:
            words.append(str(value))
    if command[0].startswith("-"):
        words.append("--")
    return shlex.join([*words, *command])
