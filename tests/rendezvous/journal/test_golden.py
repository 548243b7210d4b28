"""This version reads the journals of all former ones, and continues their jobs."""

import json
import shutil
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

import pytest

from hvdrun.version import __version__
from rendezvous.core import membership
from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import Ticked
from rendezvous.core.state import State
from rendezvous.journal.codec import REMOVED_FIELDS, EnumCodec
from tests.rendezvous.journal.golden import GOLDEN, describe, list_types
from tests.rendezvous.journal.reading import opened, write

JOURNALS = sorted(path.parent for path in GOLDEN.glob("*/*/journal.db"))
SCHEMAS = sorted(GOLDEN.glob("*/schema.json"))
LIMIT_SECONDS = 3600.0  # on the job's clock, and longer than any limit of these jobs


def test_this_version_has_a_journal_for_later_ones() -> None:
    assert (GOLDEN / __version__).is_dir(), "run python -m tests.rendezvous.journal.golden"
    assert {path.parent.name for path in JOURNALS} == {path.parent.name for path in SCHEMAS}


@pytest.mark.parametrize("folder", JOURNALS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_job_of_a_former_version_continues_and_comes_to_its_end(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "journal")
    with opened(tmp_path / "journal") as journal:
        state = journal.read()
        assert journal.term == 2
        assert journal.get("secret") == b"of a job"
    assert state is not None
    assert state.workers
    last = state.now + LIMIT_SECONDS
    with opened(tmp_path / "journal") as journal:
        while state.phase is not Phase.FINISHED:
            assert state.now < last, "no agent reports, and the job does not end"
            state, _ = membership.step(state, Ticked(state.now + state.policy.lease_seconds / 2))
        write(journal, state)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.parent.name)
def test_each_field_and_value_of_a_former_version_is_known(path: Path) -> None:
    types = list_types(State)
    for name, members in json.loads(path.read_text(encoding="utf-8")).items():
        kind = types.get(name)
        if kind is None:
            continue  # no state contains it any more, so its fields have gone, too
        if issubclass(kind, Enum):
            decoded = [EnumCodec(kind).decode(member) for member in members]
            assert len(decoded) == len(members)
        else:
            check_fields(kind, set(members))


def check_fields(kind: type, former: set[str]) -> None:
    """A journal with these fields of a dataclass is read."""
    present = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}
    assert former - present <= REMOVED_FIELDS.get(kind.__name__, frozenset()), f"list what was removed from {kind}"
    assert needed <= former, f"a new field of {kind} needs a default"


def test_the_names_of_removed_fields_stay_unused() -> None:
    described = describe(State)
    assert {name: set(described.get(name, ())) & removed for name, removed in REMOVED_FIELDS.items()} == {
        name: set() for name in REMOVED_FIELDS
    }
