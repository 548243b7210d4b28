"""A job that exists is a job that is possible."""

from pathlib import Path

import pytest

from hvdrun.errors import NotEnoughSlotsError, UsageError
from hvdrun.spec.jobspec import JobSpec, Workers
from hvdrun.spec.limits import Elasticity, Limits
from hvdrun.spec.remote import Joining, Remote
from rendezvous.bootstrap import Backend
from rendezvous.core.model import Host, Policy, Recovery
from tests.hvdrun.specs import with_fields

SPEC = JobSpec(Workers(("python", "train.py"), 2, (Host("localhost", 2),), Path("/work")), Limits(grace_seconds=1.0))


def test_the_policy_is_static_and_has_the_limits() -> None:
    spec = with_fields(SPEC, start_timeout_seconds=7.0, lease_seconds=8.0, grace_seconds=0.0)
    assert spec.policy() == Policy(
        min_size=2, max_size=2, failures_allowed=0, start_timeout_seconds=7.0, lease_seconds=8.0, grace_seconds=0.0
    )


def test_more_workers_than_slots_are_refused_with_all_remedies() -> None:
    with pytest.raises(
        NotEnoughSlotsError, match=r"5 workers .* 3 slots .*a 2, b 1.*: offer more slots.* -np 3.* --oversubscribe"
    ):
        with_fields(SPEC, size=5, hosts=(Host("a", 2), Host("b", 1)))


def test_of_very_many_hosts_only_some_are_named() -> None:
    with pytest.raises(NotEnoughSlotsError, match=r"and 92 more\)") as caught:
        with_fields(SPEC, size=200, hosts=tuple(Host(f"h{number}", 1) for number in range(100)))
    assert len(str(caught.value)) < 200


def test_hosts_can_be_compared_where_there_are_several_that_the_doctor_can_visit() -> None:
    two, script = (Host("a", 2), Host("b", 2)), Elasticity(1, script="hosts.sh")
    jobs = [
        SPEC,
        with_fields(SPEC, hosts=two),  # the first one has room for all
        with_fields(SPEC, hosts=two, elasticity=Elasticity(1)),
        with_fields(SPEC, size=3, hosts=two),
        with_fields(SPEC, hosts=(), elasticity=script),
        with_fields(SPEC, hosts=(), remote=Remote(joining=Joining())),
    ]
    assert [job.has_comparable_hosts for job in jobs] == [False, False, True, True, True, False]


def test_a_job_with_fixed_hosts_never_has_more_workers_than_slots() -> None:
    two, script = (Host("a", 2), Host("b", 2)), Elasticity(1, script="hosts.sh")
    jobs = [
        with_fields(SPEC, hosts=two),
        with_fields(SPEC, hosts=two, elasticity=Elasticity(1)),
        with_fields(SPEC, hosts=two, elasticity=Elasticity(1, 3)),
        with_fields(SPEC, hosts=two, elasticity=Elasticity(1, 9)),
        with_fields(SPEC, hosts=(), elasticity=script),
        with_fields(SPEC, hosts=(), elasticity=Elasticity(1), remote=Remote(joining=Joining())),
    ]
    assert [job.max_size for job in jobs] == [2, 4, 3, 4, None, None]


def test_a_host_that_is_not_this_machine_may_have_a_command_of_its_own() -> None:
    spec = with_fields(SPEC, remote=Remote(frozenset({"a"}), ("/there/python", "train.py"), "/there/python"))
    assert (spec.is_remote("a"), spec.command_on("a")) == (True, ("/there/python", "train.py"))
    assert (spec.is_remote("localhost"), spec.command_on("localhost")) == (False, ("python", "train.py"))


def test_a_job_that_is_shown_does_not_show_the_variables_that_it_forwards() -> None:
    assert "hunter2" not in repr(with_fields(SPEC, forwarded={b"API_KEY": b"hunter2"}))


def test_a_backend_a_folder_of_checkpoints_and_a_check_reach_all_workers_whatever_else_was_forwarded() -> None:
    assert not {b"HVD_BACKEND", b"HVD_CHECKPOINT"} & SPEC.variables.keys()
    spec = with_fields(SPEC, backend=Backend.UCC, checkpoint=Path("/shared/run 1"), forwarded={b"HVD_BACKEND": b"nccl"})
    asked: tuple[dict[str, bool], ...] = ({}, {"check_nan": True}, {"check_nan": True, "nan_is_error": True})
    assert [with_fields(SPEC, **each).variables.get(b"HVD_CHECK_NAN") for each in asked] == [None, b"1", b"error"]
    assert with_fields(SPEC, check_replicas=100).variables[b"HVD_CHECK_REPLICAS"] == b"100"
    assert (spec.variables[b"HVD_BACKEND"], spec.variables[b"HVD_CHECKPOINT"]) == (b"ucc", b"/shared/run 1")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"command": ()}, "no command"),
        ({"command": ("",)}, "empty"),
        ({"size": 0}, "at least one"),
        ({"size": -1}, "at least one"),
        ({"hosts": (Host("a", 1), Host("a", 1))}, "twice"),
        ({"directory": Path("here")}, "absolute"),
        ({"start_timeout_seconds": 0.0}, "--start-timeout"),
        ({"start_timeout_seconds": float("inf")}, "--start-timeout"),
        ({"lease_seconds": -1.0}, "--lease"),
        ({"lease_seconds": float("nan")}, "--lease"),
        ({"lease_seconds": 0.49}, r"--lease 0.49s is too short.*the shortest is 0.5s"),
        ({"launcher_timeout_seconds": 0.0}, "--launcher-timeout"),
        ({"server_timeout_seconds": 0.0}, "--server-timeout"),
        ({"grace_seconds": -0.1}, "--grace"),
        ({"grace_seconds": float("nan")}, "--grace"),
        # others that an elastic job can have are in test_conflicts.py
        ({"elasticity": Elasticity(0)}, "--min-np 0"),
        ({"elasticity": Elasticity(1, recovery=Recovery(elastic_timeout_seconds=float("inf")))}, "--elastic-timeout"),
    ],
)
def test_an_impossible_job_cannot_be_made(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        with_fields(SPEC, **change)
