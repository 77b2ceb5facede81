"""Sentences about what others wrote: whatever a file has in it, a message stays one line that a terminal can show."""

from __future__ import annotations

LONGEST = 400  # characters of what a library, or a file, says in a message of ours


def one_line(text: object, limit: int = LONGEST) -> str:
    r"""A text in one line, shortened; signs that would change a terminal are spelled out.

    Example:
        >>> one_line("expected a key\n  in line 3\x1b[2J")
        'expected a key in line 3\\x1b[2J'
        >>> one_line("a" * 50, limit=10)
        'aaaaaaa...'
    """
    words = " ".join(str(text)[: 4 * limit].split())
    plain = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in words)
    return plain if len(plain) <= limit else f"{plain[: limit - 3]}..."


def shown(value: object, limit: int = 80) -> str:
    """A value as Python spells it, shortened.

    Example:
        >>> shown("x" * 100, limit=12)
        "'xxxxxxxx..."
    """
    try:
        return one_line(repr(value), limit)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return f"a {type(value).__name__} that is too long to show"
