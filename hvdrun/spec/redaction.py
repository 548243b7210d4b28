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
_WORD_IN_SCRIPT = r"""(?:'[^']*(?:'|$)|"(?:\\.|[^"\\])*(?:"|$)|\\.|[^\s;&|'"\\])+"""
_SET_IN_SCRIPT = re.compile(
    rf"(?P<name>(?<![\w-])[A-Za-z_]\w*)(?P<sign>=){_WORD_IN_SCRIPT}"
    rf"|(?P<flag>(?<!\S)--?[A-Za-z][\w-]*)(?P<gap>=|\s+)(?!-){_WORD_IN_SCRIPT}",
    re.DOTALL,
)
_PASSWORD_FLAGS = {"sshpass": "-p"}  # programs whose flag for a password does not tell
_PEM_KEY = "PRIVATE KEY-----"


def names_a_secret(name: str) -> bool:
    """A variable or option of this name holds a secret."""
    return name not in _NO_SECRETS and _SECRET_NAMES.search(name.replace("-", "_")) is not None


def redact_value(name: str, value: str) -> str:
    """The value without secrets: nothing of a secret, and of an address all but its password."""
    if value and names_a_secret(name):
        return REDACTED
    return redact_text(value)


def redact_text(text: str) -> str:
    """A text without private keys, and without passwords in addresses."""
    if _PEM_KEY in text:
        return REDACTED
    return _PASSWORD_IN_ADDRESS.sub(rf"\g<user>:{REDACTED}@", text)


def redact_script(text: str) -> str:
    """Lines for a shell without secrets: `export API_KEY=x` and `program --api-key x` lose their x."""

    def redact(match: re.Match[str]) -> str:
        name, sign = match["name"] or match["flag"], match["sign"] or match["gap"]
        if names_a_secret(name):
            return f"{name}{sign}{REDACTED}"
        return match[0]

    return redact_text(_SET_IN_SCRIPT.sub(redact, text))


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets: `--api-key=x`, `--api-key x` and `API_KEY=x` lose their x."""
    return tuple(_redact_words(words))


def _redact_words(words: Sequence[str]) -> Iterator[str]:
    is_announced, program_flag = False, None
    for word in words:
        name, equals, value = word.partition("=")
        is_flag = word.startswith("-")
        if is_announced and not is_flag:
            yield REDACTED
        elif program_flag is not None and is_flag and word.startswith(program_flag) and word != program_flag:
            yield f"{program_flag}{REDACTED}"
        elif equals and " " not in name:
            yield f"{name}={redact_value(name, redact_script(value))}"
        else:
            yield redact_script(word)
        is_announced = is_flag and not equals and (names_a_secret(word) or word == program_flag)
        if not is_flag:
            program_flag = _PASSWORD_FLAGS.get(word.rpartition("/")[2])
