"""What `horovodrun --help` says."""

from collections.abc import Iterator
from textwrap import fill

from hvdrun.options.horovodrun.table import WORDS
from hvdrun.options.horovodrun.word import Word
from hvdrun.options.table import BY_DEST

_WIDTH = 100
_INDENT = 6


def render_help() -> str:
    """The page: each option with what it means here."""
    return "\n".join(
        [
            "Usage: horovodrun [options] COMMAND [arguments]",
            "",
            fill("hvdrun with the options of Horovod's launcher. Their long forms may be shortened.", _WIDTH),
            "",
            *_list_options(),
        ]
    )


def explain(word: Word) -> str:
    """What an option means here, in a sentence."""
    if word.instead:
        return f"No effect: {word.instead}."
    if word.variable:
        return f"Sets {word.variable}={word.value or 'VALUE'} for the workers."
    if word.means is not None and word.parse is not None:
        return "INFO and below mean --verbose."
    return f"As hvdrun's {BY_DEST[word.dest].flags[0]}." if word.dest else _OWN[word.flags[-1]]


_OWN = {
    "--version": "Print Horovod's version that hvdrun stands for.",
    "--check-build": "Print what the workers' Python can do.",
    "--help": "Print this page.",
    "--disable-cache": "Nothing is cached.",
    "--gloo": "The workers talk through gloo, and through NCCL for CUDA tensors.",
}


def _list_options() -> Iterator[str]:
    for word in WORDS:
        yield f"  {', '.join(word.flags)}{' VALUE' * word.words}"
        yield fill(explain(word), _WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT)
