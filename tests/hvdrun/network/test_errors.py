"""Sentences about the network that stay readable however many hosts there are."""

from hvdrun.errors import CANNOT_LAUNCH
from hvdrun.network.errors import ConnectivityTimeoutError, NoCommonAddressError
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Listening


def test_hosts_that_do_not_answer_are_named_with_the_limit() -> None:
    error = ConnectivityTimeoutError(["a", "b"], "list its addresses", 15.0)
    assert str(error) == (
        "a, b did not list its addresses within 15 s: look whether the machine is overloaded or its connection stalls, "
        "and start again."
    )
    assert (error.hosts, error.exit_code) == (("a", "b"), CANNOT_LAUNCH)


def test_of_many_pairs_the_first_are_named_and_the_others_counted() -> None:
    pairs = [(f"host{index}", "b") for index in range(20)]
    tried = {"b": [Listening("eth0", Endpoint("10.0.0.2", 1), 24)]}
    error = NoCommonAddressError(pairs, {}, tried)
    assert "host7 does not reach b (tried 10.0.0.2 on eth0); and 12 more" in str(error)
    assert "host8" not in str(error)
    assert len(error.unreached) == 20
