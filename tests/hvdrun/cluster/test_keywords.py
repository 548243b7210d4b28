"""The keywords of `hvdrun.run()` and the words of a command line that they stand for."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdrun.cli.program import read_spec
from hvdrun.cluster import keywords
from hvdrun.cluster.cluster import Cluster
from hvdrun.cluster.errors import UnknownKeywordError
from hvdrun.cluster.keywords import Request, list_keywords, make_words
from hvdrun.errors import HvdrunError, UsageError
from hvdrun.options.table import OPTIONS

COMMAND = [sys.executable, "-m", "worker_runtime.tasks"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_proc": 2, "hosts": None, "verbose": False}, ["-np", "2"]),
        ({"np": 2, "verbose": True, "start_timeout": 1.5}, ["-np", "2", "-v", "--start-timeout", "1.5"]),
        ({"hosts": "a:1,b:2"}, ["-H", "a:1,b:2"]),
        ({"hosts": ["a:1", "b:2"]}, ["-H", "a:1,b:2"]),
        ({"hostfile": Path("/h")}, ["--hostfile", "/h"]),
        ({"min_np": 1, "max_num_proc": 4}, ["--min-np", "1", "--max-np", "4"]),
        ({"blacklist_cooldown_range": (10, 20)}, ["--blacklist-cooldown-range", "10", "20"]),
    ],
)
def test_keywords_become_the_words_of_a_command_line(given: dict[str, object], words: list[str]) -> None:
    assert make_words(given) == words


def test_only_names_of_variables_are_on_the_command_line_which_all_users_can_read() -> None:
    assert make_words({}, {"API_TOKEN": "hush"}) == ["-x", "API_TOKEN"]
    request = Request({"num_proc": 1}, {"API_TOKEN": "hush"})
    assert request.words == ["-np", "1", "-x", "API_TOKEN", *COMMAND]
    assert {**request.environment, "API_TOKEN": "hush"} == request.environment


def test_all_options_but_those_of_no_use_for_a_function_are_keywords() -> None:
    without = {option.flags[0] for option in OPTIONS if option not in list_keywords().values()}
    of_a_terminal = {"--stdin", "--detach", "--server-timeout"}
    assert without - {"-x"} == of_a_terminal | {"--dry-run", "--write-config", "--completion", "--version", "-h"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("num_procs", "there is no keyword 'num_procs': did you mean 'num_proc'?"),
        ("envs", "did you mean 'env'?"),
        ("help", "there is no keyword 'help'"),
        ("dry_run", "there is no keyword 'dry_run'"),
        ("server_timeout", "there is no keyword 'server_timeout': it is for a command, and not for a function."),
        ("stdin", "there is no keyword 'stdin'"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest(name: str, says: str) -> None:
    with pytest.raises(UnknownKeywordError) as caught:
        make_words({name: 1})
    assert says in str(caught.value)


@pytest.mark.parametrize("value", [("pml", "ob1"), [("pml", "ob1")], [["pml", "ob1"]]])
def test_one_pair_is_taken_as_several_are(value: object) -> None:
    assert make_words({"mca": value}) == ["-mca", "pml", "ob1"]


@pytest.mark.parametrize(
    ("keywords", "env", "says"),
    [
        ({"verbose": "no"}, None, "verbose takes True or False, not 'no'"),
        ({}, ["A"], "env takes names and texts, .* not a value of type list"),
        ({}, {"A": 1}, "'A' is of type str, and its value of type int"),
        ({}, {"A=B": "secret"}, "the variable 'A=B' cannot be set.$"),
        ({}, {"A": "b\0"}, "the variable 'A' cannot be set"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(keywords: dict[str, object], env: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make_words(keywords, env)


def test_the_same_option_under_two_names_is_refused() -> None:
    with pytest.raises(TypeError, match="num_proc and np are the same"):
        make_words({"num_proc": 1, "np": 2})


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"num_proc": 0}, "num_proc takes a number of workers from 1 to 100000, as in num_proc=2, not '0'."),
        ({"np": "two"}, "np takes a number of workers from 1 to 100000, as in np=2, not 'two'."),
        ({"np": 1, "grace": "x"}, "grace takes a time .*, as in grace='.*', not 'x'."),
        ({"np": 1, "hosts": "a", "hostfile": "b"}, "hosts and hostfile both say .*"),
        ({"np": 1, "min_num_proc": 2}, "min_num_proc 2 does not fit np 1: the job starts with np workers, .*"),
        ({"np": 1, "max_num_proc": None, "max_np": 3}, "max_np means nothing to a job whose .*"),
        ({"np": 1, "elastic_timeout": 3}, "elastic_timeout means nothing .* min_np, .* host_discovery_script."),
    ],
)
def test_an_error_names_the_keywords_and_not_the_flags(keywords: dict[str, object], says: str) -> None:
    with pytest.raises(HvdrunError) as caught:
        Request(keywords)
    assert re.fullmatch(says, str(caught.value))


def test_a_job_that_is_impossible_is_refused() -> None:
    with pytest.raises(HvdrunError, match="4 workers do not fit into the 2 slots"):
        Request({"num_proc": 4, "hosts": "localhost:2"})


def test_a_configuration_file_is_a_keyword_and_may_hold_the_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("np: 3\ngrace: 9s\n", encoding="utf-8")
    request = Request({"config_file": tmp_path / "job.yaml"})
    assert (request.size, request.grace_seconds) == (3, 9.0)


@pytest.mark.parametrize("line", ["max-restarts: 2", "detach: true", "dry-run: true", "stdin: 0"])
def test_a_configuration_file_of_a_job_that_no_function_can_be_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "job.yaml").write_text(f"np: 2\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"leave it out"):
        Request({"config_file": tmp_path / "job.yaml"})


@pytest.mark.parametrize(
    ("given", "devices", "size"),
    [
        ({"np": 3}, 8, 3),
        ({"hosts": "a:2,b:3"}, 8, 5),
        ({}, 4, 4),
        ({}, 0, 2),
        ({"min_np": 3}, 0, 3),
    ],
)
def test_without_a_number_all_slots_or_this_machines_accelerators_or_two_workers_are_used(
    given: dict[str, object], devices: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keywords, "count_accelerators", lambda: devices)
    request = Request(given)
    assert request.size == size
    assert request.words == ["-np", str(size), *make_words({**given, "np": None}), *COMMAND]


def test_inside_an_allocation_the_schedulers_hosts_and_slots_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("a\na\nb\n", encoding="utf-8")
    monkeypatch.setenv("PBS_JOBID", "5")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    request = Request({})
    assert (request.size, request.words[:2]) == (3, ["-np", "3"])
    assert [host.name for host in read_spec(request.words).workers.hosts] == ["a", "b"]
    assert Request({"hosts": "c:4"}).size == 4


class EndedChild:
    """A job that has ended at once."""

    is_own = True
    outcome = None

    def has_ended(self) -> bool:
        """See `LauncherChild`."""
        return True

    def messages(self, _: float) -> tuple[()]:
        """See `LauncherChild`."""
        return ()

    def finish(self) -> None:
        """See `LauncherChild`."""

    def close(self) -> None:
        """See `LauncherChild`."""


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"output_filename": "/out"}, ["--output-filename", "/out/job.2"]),
        ({"output_filename": "out"}, ["--output-filename", "out/job.2"]),
        ({"timeline": "t.json"}, ["--timeline", "t.job.2.json"]),
        ({"timeline": "DYNAMIC"}, []),
        ({"log_file": "/log"}, []),
    ],
)
def test_the_next_job_of_a_cluster_leaves_the_files_of_the_first_alone(
    given: dict[str, Any], named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []

    def start(words: list[str], *_: object) -> EndedChild:
        begun.append(words)
        return EndedChild()

    monkeypatch.setattr(keywords, "LauncherChild", start)
    with Cluster(1, **given) as cluster:
        cluster.__enter__()
    first, second = begun
    assert first[-3:] == second[-3:] == COMMAND
    assert second[:-3] == [*first[:-3], *named]
