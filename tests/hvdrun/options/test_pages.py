"""The pages of --help."""

import pytest

from hvdrun.cli.completion import PROGRAMS
from hvdrun.cli.program import main
from hvdrun.options import pages
from hvdrun.options.flags import find_option
from hvdrun.options.pages import describe_all
from hvdrun.options.table import OPTIONS

SCREEN_LINES, SCREEN_COLUMNS = 36, 80


def test_the_help_describes_every_option_once() -> None:
    described = [spelling for _, rows in describe_all() for spelling, _ in rows]
    assert len(described) == len(OPTIONS)
    assert all(any(option.flags[0] in spelling for spelling in described) for option in OPTIONS)


def test_help_names_the_default_and_the_variable_of_an_option() -> None:
    texts = dict(row for _, rows in describe_all() for row in rows)
    assert texts["--backend NAME"].endswith("torch lacks is refused. Or $HVD_BACKEND.")
    assert texts["--start-timeout TIME"].endswith("at least --min-np. Default 120s, or $HOROVOD_START_TIMEOUT.")
    assert texts["--grace TIME"].endswith("to SIGKILL. Default 5s.")


def test_the_short_help_is_one_screen_and_leads_to_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "2", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    assert "hvdrun --help all" in " ".join(lines)
    assert main(["--help", "all"]) == 0
    whole = capsys.readouterr().out
    assert [option.flags[0] for option in OPTIONS if option.flags[0] not in whole] == []


def test_the_short_help_names_options_and_programs_that_exist() -> None:
    assert all(find_option(term.split()[0]) for term, _ in pages.USED_OPTIONS)
    named = {name for term, _ in pages.PROGRAMS for name in term.split(", ")}
    assert named == PROGRAMS.keys()
