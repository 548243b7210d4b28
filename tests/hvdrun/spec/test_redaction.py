"""What is taken for a secret, and what stays readable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.spec.redaction import REDACTED, names_a_secret, redact_command, redact_script, redact_text, redact_value

NAMES_OF_SECRETS = (
    "HF_TOKEN GITHUB_TOKENS AWS_SECRET_ACCESS_KEY WANDB_API_KEY apikey SSHPASSWORD DB_PASSWD DB_PASS PASS MYSQL_PWD "
    "KEY_PASSPHRASE GOOGLE_APPLICATION_CREDENTIALS HTTP_AUTHORIZATION REGISTRY_AUTH SESSION_COOKIE --api-key --db-pass"
)
OTHER_NAMES = "PATH PWD OMP_NUM_THREADS TOKENIZERS_PARALLELISM XKB_KEYBOARD SSH_AUTH_SOCK BYPASS MASTER_PORT"


@pytest.mark.parametrize("name", NAMES_OF_SECRETS.split())
def test_a_name_of_a_secret_is_known(name: str) -> None:
    assert names_a_secret(name)
    assert redact_value(name, "hunter2") == REDACTED


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_other_names_are_no_names_of_secrets(name: str) -> None:
    assert not names_a_secret(name)
    assert redact_value(name, "4") == "4"


def test_a_secret_that_is_empty_is_shown_to_be_empty() -> None:
    assert redact_value("HF_TOKEN", "") == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:hunter2@proxy:3128", f"http://user:{REDACTED}@proxy:3128"),
        ("redis://:hunter2@host/0 http://b:c@d", f"redis://:{REDACTED}@host/0 http://b:{REDACTED}@d"),
        ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
        ("git@host:repository", "git@host:repository"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", REDACTED),
        ("x", "x"),
    ],
)
def test_a_value_with_the_form_of_a_secret_is_redacted(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_value("PLAIN", text) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["python", "t.py", "--api-key=hunter2"], ["python", "t.py", f"--api-key={REDACTED}"]),
        (["t.py", "--api-key", "hunter2", "rest"], ["t.py", "--api-key", REDACTED, "rest"]),
        (["t.py", "--api-key=hunter2", "rest"], ["t.py", f"--api-key={REDACTED}", "rest"]),
        (["t.py", "--use-token", "--lr", "1"], ["t.py", "--use-token", "--lr", "1"]),
        (["env", "HF_TOKEN=hunter2", "a=b=c"], ["env", f"HF_TOKEN={REDACTED}", "a=b=c"]),
        (["t.py", "--url=http://u:hunter2@h"], ["t.py", f"--url=http://u:{REDACTED}@h"]),
        (["key", "shown"], ["key", "shown"]),
        (["sshpass", "-p", "hunter2", "ssh", "-p", "22"], ["sshpass", "-p", REDACTED, "ssh", "-p", "22"]),
        (["/usr/bin/sshpass", "-phunter2", "ssh"], ["/usr/bin/sshpass", f"-p{REDACTED}", "ssh"]),
        (["sh", "-c", "A=1 HF_TOKEN=hunter2 python t.py"], ["sh", "-c", f"A=1 HF_TOKEN={REDACTED} python t.py"]),
        (["docker", "--env=HF_TOKEN=hunter2"], ["docker", f"--env=HF_TOKEN={REDACTED}"]),
        ([], []),
    ],
)
def test_a_command_line_loses_its_secrets(words: list[str], shown: list[str]) -> None:
    assert redact_command(words) == tuple(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cd /data; export HF_TOKEN=hunter2 A=1", f"cd /data; export HF_TOKEN={REDACTED} A=1"),
        ("A=1 && HF_TOKEN='hunter2 x'\"y z\"; B=2", f"A=1 && HF_TOKEN={REDACTED}; B=2"),
        (". env; HF_TOKEN=hun\\ ter2;x", f". env; HF_TOKEN={REDACTED};x"),
        ("HF_TOKEN='hunter2 x", f"HF_TOKEN={REDACTED}"),
        ("login --api-key  hunter2 --lr 1", f"login --api-key  {REDACTED} --lr 1"),
        ("login --api-key='hunter2'|x", f"login --api-key={REDACTED}|x"),
        ("login --use-token --lr 1", "login --use-token --lr 1"),
        ("module load python; A=b=c", "module load python; A=b=c"),
        ("curl http://u:hunter2@h", f"curl http://u:{REDACTED}@h"),
    ],
)
def test_lines_for_a_shell_lose_their_secrets_wherever_they_stand(text: str, shown: str) -> None:
    assert redact_script(text) == shown


@given(st.lists(st.text()))
def test_no_word_of_a_command_line_appears_or_disappears(words: list[str]) -> None:
    assert len(redact_command(words)) == len(words)
