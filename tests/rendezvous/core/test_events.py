"""Events that could not have happened cannot be made."""

import pytest

from rendezvous.core.messages import HostsChanged
from rendezvous.core.model import Host


def test_a_host_named_twice_is_refused() -> None:
    # The host's slots would be counted twice and hold one worker: the job would wait for ever.
    with pytest.raises(ValueError, match="a host is named twice among a, b, a"):
        HostsChanged((Host("a", 1), Host("b", 1), Host("a", 2)))
