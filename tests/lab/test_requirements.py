"""Where no lab can be built the reason is said, and a test is skipped, or fails where it may not be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import requirements


@pytest.fixture(autouse=True)
def _look_again() -> Iterator[None]:
    requirements.find_missing.cache_clear()
    yield
    requirements.find_missing.cache_clear()


@pytest.fixture
def without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)


@pytest.mark.usefixtures("without_root")
@pytest.mark.parametrize("value", [None, "", "0"])
def test_a_test_is_skipped_with_the_reason(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv(requirements.REQUIRED, raising=False)
    else:
        monkeypatch.setenv(requirements.REQUIRED, value)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        requirements.require_lab()


@pytest.mark.usefixtures("without_root")
def test_a_required_lab_that_is_missing_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(requirements.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match=r"needs root.*HVDRUN_REQUIRE_LAB"):
        requirements.require_lab()


@pytest.mark.parametrize(("user", "needs"), [(0, "nft, sshd"), (1000, "root, nft, sshd")])
def test_the_reason_ends_with_the_command_that_installs_what_is_missing(
    user: int, needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(requirements, "_FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("ip", "tc", "ssh", "ssh-keygen", "nsenter", "unshare"):
        (tmp_path / name).touch(mode=0o755)
    assert requirements.find_missing() == (
        f"a lab of hosts needs {needs}, which are missing here: on Debian, apt-get install nftables openssh-server"
    )


def test_a_refusal_of_the_kernel_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(requirements, "_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("ip", "tc", "nft", "ssh", "ssh-keygen", "sshd", "nsenter"):
        (tmp_path / name).touch(mode=0o755)
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2; exit 1\n", encoding="ascii")
    refusing.chmod(0o755)
    assert (requirements.find_missing() or "").endswith("refused here: unshare: Operation not permitted")
