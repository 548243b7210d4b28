"""The page of --help."""

from hvdrun.options.pages import describe_all
from hvdrun.options.table import OPTIONS


def test_the_help_describes_every_option_once() -> None:
    described = [spelling for _, rows in describe_all() for spelling, _ in rows]
    assert len(described) == len(OPTIONS)
    assert all(any(option.flags[0] in spelling for spelling in described) for option in OPTIONS)


def test_help_names_the_default_and_the_variable_of_an_option() -> None:
    texts = dict(row for _, rows in describe_all() for row in rows)
    assert texts["--backend NAME"].endswith("torch lacks is refused. Or $HVD_BACKEND.")
    assert texts["--start-timeout TIME"].endswith("at least --min-np. Default 120s, or $HOROVOD_START_TIMEOUT.")
    assert texts["--grace TIME"].endswith("to SIGKILL. Default 5s.")
