"""What stands beside a picture in a shard: which members are pictures, which are labels, and what a label says."""

from __future__ import annotations

import json
from typing import NamedTuple

from castling.tasks.pictures import ENDINGS

PICTURES = {ending.removeprefix(".") for ending in ENDINGS}
LABELS = ("cls", "json", "txt")  # the first that there is counts
MOST_OF_A_LABEL = {"cls": 200, "txt": 200, "json": 2**20}  # bytes; more is a caption, not a label


class Parts(NamedTuple):
    """The name of a member as WebDataset reads it.

    Args:
        key: what members of one example share: all before the first dot of the file's name.
        ending: what they are told apart by, in small letters.
    """

    key: str
    ending: str


def parts_of(name: str) -> Parts | None:
    """Key and ending of a member; None for a hidden one, or one without ending.

    Example:
        >>> parts_of("a.b/0001.seg.PNG"), parts_of("a/.hidden.jpg"), parts_of("a/notes")
        (Parts(key='a.b/0001', ending='seg.png'), None, None)
    """
    folder, slash, file = name.rpartition("/")
    stem, dot, ending = file.partition(".")
    return Parts(folder + slash + stem, ending.lower()) if stem and dot else None


def label_text(ending: str, content: bytes) -> str | None:
    """What a label says, a number or the name of a class; None where it says nothing.

    Args:
        ending: one of `LABELS`: `cls` and `txt` are the text, `json` has it as `label` or `cls`.
        content: the bytes of the member.

    Example:
        >>> label_text("cls", b"7"), label_text("json", b'{"label": "cat"}'), label_text("txt", b"")
        ('7', 'cat', None)
    """
    try:
        if ending == "json":
            values = json.loads(content)
            value = values.get("label", values.get("cls"))
            text = str(value) if type(value) in (int, str) else ""
        else:
            text = content.decode()
    except (ValueError, AttributeError, RecursionError):
        return None
    lines = text.split("\n")
    return text.strip() if text.strip() and not any(line.strip() for line in lines[1:]) else None
