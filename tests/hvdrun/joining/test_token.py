"""Tokens in files: who may read them, when they run out, and what is no token."""

import json
import os
import resource
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.joining import token as token_module
from hvdrun.joining.token import Keys, Token, TokenFileError, create_files, load_files, name_key, open_keys, reopen_keys


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_and_its_key_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    made = create_files(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["job.token", "job.token.key"]
    assert (read_mode(path), read_mode(name_key(path))) == (0o600, 0o600)
    loaded = load_files(path)
    assert (loaded.token, loaded.authority.key) == (Token.read(path), made.authority.key)
    assert made.authority.key not in path.read_bytes()
    assert loaded.token.secret == made.token.secret
    assert made.token.secret.hex() not in repr(loaded)


def test_a_file_that_every_user_may_read_is_refused_and_one_of_a_group_is_not(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    create_files(path)
    for file in (path, name_key(path)):
        file.chmod(0o440)  # as Kubernetes gives a Secret to a pod
        assert load_files(path).path == path
        file.chmod(0o644)
        with pytest.raises(TokenFileError, match=rf"is open to every user of .* \(mode 0644\): .* `chmod 600 {file}`"):
            load_files(path)
        file.chmod(0o600)


def test_a_token_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    name_key(path).write_text("mine")
    with pytest.raises(TokenFileError, match=r"cannot be created, because '.*\.key' exists: remove it first"):
        create_files(path)
    assert name_key(path).read_text() == "mine"
    with pytest.raises(TokenFileError, match=r"is a folder: give the name of a new file in it\.$"):
        create_files(tmp_path)


@pytest.mark.parametrize("free_bytes", [0, 400])  # 400: the key has place, the token has none
def test_a_full_disk_gets_neither_a_token_nor_its_key(tmp_path: Path, free_bytes: int) -> None:
    path = tmp_path / "job.token"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, limits[1]))
    try:
        with pytest.raises(TokenFileError, match="cannot be written"):
            create_files(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    create_files(path)


def test_a_token_file_that_hvdrun_made_is_removed_with_the_job(tmp_path: Path) -> None:
    with open_keys(None, tmp_path, "1234abcd") as keys:
        assert [read_mode(path) for path in tmp_path.iterdir()] == [0o600]
        assert Token.read(keys.path) == keys.token
        with open_keys(None, tmp_path, "5678abcd"):  # another job, which finds the first one's
            assert keys.path.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_next_launcher_of_a_job_has_its_keys_without_a_file(tmp_path: Path) -> None:
    with open_keys(None, tmp_path, "1234abcd") as keys:
        kept = keys.encode()
    former = Keys.decode(kept)
    assert (former.token, former.path, former.authority.key) == (keys.token, keys.path, keys.authority.key)
    with reopen_keys(former, None) as again:
        assert Token.read(keys.path) == again.token
        assert read_mode(keys.path) == 0o600
    assert list(tmp_path.iterdir()) == []
    with reopen_keys(former, keys.path):  # the user's own, who has removed it
        assert list(tmp_path.iterdir()) == []
    with reopen_keys(replace(former, path=tmp_path / "no" / "job.token"), None) as again:
        assert again.token == keys.token


def test_the_next_job_removes_the_token_of_one_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_module, "_ORPHAN_SECONDS", -1.0)
    killed, kept = tmp_path / "hvdrun-job-dead.token", tmp_path / "hvdrun-job-kept.token"
    killed.touch()
    create_files(kept)
    with open_keys(None, tmp_path, "1234abcd") as keys, open_keys(None, tmp_path, "5678abcd"):
        assert not killed.exists()
        assert keys.path.exists()
        assert kept.exists()


def test_a_token_file_is_made_once_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    with open_keys(path, tmp_path, "1") as first:
        pass
    with open_keys(path, tmp_path, "2") as second:
        assert second.token == first.token == Token.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "\xff",
        json.dumps({"authority": 1, "secret": "00", "expires": "2026-01-01T00:00:00+00:00"}),
    ],
)
def test_text_that_is_no_token_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(TokenFileError, match=r"is not a token: create one with `hvdrun token FILE`"):
        Token.read(path)


def test_keys_that_cannot_be_used_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path, other = tmp_path / "job.token", tmp_path / "other.token"
    create_files(path, lifetime_seconds=0.0)
    with pytest.raises(TokenFileError, match=r"expired at .*: remove it and job\.token\.key, and a new one is created"):
        load_files(path)
    create_files(other)
    name_key(other).write_bytes(name_key(path).read_bytes())
    with pytest.raises(TokenFileError, match="does not belong to the key"):
        load_files(other)
    name_key(other).write_text("nothing")
    with pytest.raises(TokenFileError, match="is not a key"):
        load_files(other)
    name_key(other).unlink()
    with pytest.raises(TokenFileError, match="which cannot be read: No such file"):
        load_files(other)


@pytest.mark.parametrize("name", ["job.token", "job.token.key"])
def test_a_token_or_key_that_is_no_regular_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "job.token"
    create_files(path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(TokenFileError, match="cannot be read: it is no regular file"):
        load_files(path)


def test_a_fifo_or_link_named_as_the_token_of_a_killed_job_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_module, "_ORPHAN_SECONDS", -1.0)
    fifo, link = tmp_path / "hvdrun-job-x.token", tmp_path / "hvdrun-job-y.token"
    os.mkfifo(fifo)
    (tmp_path / "mine").touch()
    link.symlink_to("mine")
    with open_keys(None, tmp_path, "1234abcd"):
        assert fifo.is_fifo()
        assert link.is_symlink()


def test_jobs_that_start_together_with_one_new_token_file_share_its_keys(tmp_path: Path) -> None:
    path, barrier = tmp_path / "job.token", threading.Barrier(8)

    def start(number: int) -> Token:
        barrier.wait(60)
        with open_keys(path, tmp_path, str(number)) as keys:
            return keys.token

    with ThreadPoolExecutor(8) as jobs:
        tokens = set(jobs.map(start, range(8)))
    assert tokens == {load_files(path).token}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["job.token", "job.token.key"]


def test_a_key_without_its_token_is_refused_after_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_module, "_CREATION_SECONDS", 0.0)
    name_key(tmp_path / "job.token").write_text("mine")
    with (
        pytest.raises(TokenFileError, match="exists: remove it first"),
        open_keys(tmp_path / "job.token", tmp_path, "1"),
    ):
        pass
