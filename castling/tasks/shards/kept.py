"""The index of some archives, kept between runs: beside them, or in the user's cache where they cannot be written to.

It counts only as long as the archives have the sizes and times that it was made for.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from castling.tasks.shards.builder import IndexBuilder, complaint_lines, refuse_errors
from castling.tasks.shards.index import Listed, ShardIndex, listed, map_index, write_index

logger = logging.getLogger(__name__)


def open_index(root: Path, name: str, paths: Sequence[Path], scan: Callable[[IndexBuilder], None]) -> ShardIndex:
    """The index of some archives: the one that is kept if it is of these files, otherwise a new one.

    Args:
        root: the folder that they are in; the index is kept there, or in the user's cache where it cannot be written.
        name: what the index is called, such as the split.
        paths: the archives, and other files that it is made from.
        scan: walks the archives and adds what there is.

    Raises:
        ValueError: names members that cannot be read, or say that there is no picture.
        OSError: if an archive cannot be read.
    """
    files = listed(root, paths)
    places = [root / f".castling-{name}.safetensors", _in_cache(root, name)]
    for place in places:
        index = _kept_index(place, root, files)
        if index is not None:
            return index
    logger.info("looking through %s of %s once, for the places of pictures", _count(files, "archive"), root)
    builder = IndexBuilder()
    scan(builder)
    refuse_errors(builder.complaints)
    index = builder.build(root, files)
    if not len(index):
        raise ValueError(f"no pictures in {_count(files, 'archive')} of {root}, first {files[0].name}")
    for line in complaint_lines(builder.complaints):
        logger.warning("%s", line)
    for place in places:
        try:
            write_index(place, index)
        except OSError as error:
            logger.info("cannot write %s: %s", place, error.strerror or error)
        else:
            return _kept_index(place, root, files) or index
    return index


def _kept_index(path: Path, root: Path, files: list[Listed]) -> ShardIndex | None:
    try:
        index = map_index(path, root)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged (%s) and is made anew", path, error)
        return None
    if index.files != files:
        logger.info("%s is of other archives than those that are there now", path)
        return None
    return index


def _in_cache(root: Path, name: str) -> Path:
    """Where the index of a folder lies that cannot be written to."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    digest = hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:16]
    return Path(cache).expanduser() / "castling" / f"{digest}-{name}.safetensors"


def _count(files: Sequence[Listed], what: str) -> str:
    return f"{len(files):,} {what}{'s' if len(files) > 1 else ''}"
