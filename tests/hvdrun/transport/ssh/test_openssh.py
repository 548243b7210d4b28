"""A configuration leads hvdrun where it leads ssh: to a login, or to none."""

import pytest

from tests.hvdrun.transport.ssh.servers import Home, SshServer, log_in, needs_sshd

pytestmark = needs_sshd


@pytest.mark.parametrize(
    ("extra", "gets_in"),
    [
        ("ProxyJump near", True),
        ("ProxyCommand ssh -W %h:%p %r@near", True),
        ("HostKeyAlias far.example", False),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("ProxyJump nobody@near", False),
                ("ProxyCommand none\nProxyJump nobody@near", True),
                ('Match originalhost far exec "test %h = 127.0.0.1"\nUser nobody', True),
                ('Match final host 127.0.0.1 exec "test %h = 127.0.0.1"\nHostKeyAlias far.example', False),
            )
        ),
    ],
)
def test_an_ssh_configuration_that_logs_in_with_ssh_logs_in_with_hvdrun(
    home: Home, server: SshServer, extra: str, *, gets_in: bool
) -> None:
    assert log_in(home, server, known=server.known_line(), extra=extra) is gets_in
