"""Sentences for people, on their way over the wire."""


def encode_text(sentence: str | None) -> str:
    """A sentence for people, in UTF-8; the command or path it speaks of may hold what is none (os.fsdecode)."""
    return "" if sentence is None else sentence.encode(errors="backslashreplace").decode()
