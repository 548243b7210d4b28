"""Redacts secrets in output and logs: values with the name or the form of a secret."""

import re
from collections.abc import Iterator, Sequence

REDACTED = "***"
_SECRET_NAMES = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASS(WORD|WD|PHRASE)|KEY(?!BOARD)|CREDENTIAL|AUTHORIZATION|COOKIE|(^|_)(PASS|PWD|AUTH)$",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"PWD"})  # the shell's working directory
_PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)(?P<user>[^/@\s:]*):[^/@\s]*@")
_PEM_KEY = "PRIVATE KEY-----"


def names_a_secret(name: str) -> bool:
    """A variable or option of this name holds a secret."""
    return name not in _NO_SECRETS and _SECRET_NAMES.search(name.replace("-", "_")) is not None


def redact_value(name: str, value: str) -> str:
    """The value without secrets: nothing of a secret, and of an address all but its password."""
    return REDACTED if value and names_a_secret(name) else redact_text(value)


def redact_text(text: str) -> str:
    """A text without private keys, and without passwords in addresses."""
    return REDACTED if _PEM_KEY in text else _PASSWORD_IN_ADDRESS.sub(rf"\g<user>:{REDACTED}@", text)


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets: `--api-key=x`, `--api-key x` and `API_KEY=x` lose their x."""
    return tuple(_redact_words(words))


def _redact_words(words: Sequence[str]) -> Iterator[str]:
    is_announced = False
    for word in words:
        name, equals, value = word.partition("=")
        is_flag = word.startswith("-")
        if is_announced and not is_flag:
            yield REDACTED
        elif equals:
            yield f"{name}={redact_value(name, value)}"
        else:
            yield redact_text(word)
        is_announced = is_flag and not equals and names_a_secret(word)
