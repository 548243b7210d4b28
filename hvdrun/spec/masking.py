"""Keeps secrets out of what is shown and logged: a value is masked when its name, or its own form, tells of one."""

import re
from collections.abc import Iterator, Sequence

MASK = "***"
_SECRET_NAMES = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASS(WORD|WD|PHRASE)|KEY(?!BOARD)|CREDENTIAL|AUTHORIZATION|COOKIE|(^|_)(PASS|PWD|AUTH)$",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"PWD"})  # the shell's working directory
_PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)(?P<user>[^/@\s:]*):[^/@\s]*@")
_PEM_KEY = "PRIVATE KEY-----"


def names_a_secret(name: str) -> bool:
    """A variable or option of this name holds something that must not be shown."""
    return name not in _NO_SECRETS and _SECRET_NAMES.search(name.replace("-", "_")) is not None


def mask_value(name: str, value: str) -> str:
    """The value as it may be shown: all of a secret is masked, of an address only the password in it."""
    return MASK if value and names_a_secret(name) else mask_text(value)


def mask_text(text: str) -> str:
    """A text of any kind as it may be shown: what has a secret's form is masked."""
    return MASK if _PEM_KEY in text else _PASSWORD_IN_ADDRESS.sub(rf"\g<user>:{MASK}@", text)


def mask_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be shown: `--api-key=x`, `--api-key x` and `API_KEY=x` lose their x."""
    return tuple(_mask_words(words))


def _mask_words(words: Sequence[str]) -> Iterator[str]:
    is_announced = False
    for word in words:
        name, equals, value = word.partition("=")
        is_flag = word.startswith("-")
        if is_announced and not is_flag:
            yield MASK
        elif equals:
            yield f"{name}={mask_value(name, value)}"
        else:
            yield mask_text(word)
        is_announced = is_flag and not equals and names_a_secret(word)
