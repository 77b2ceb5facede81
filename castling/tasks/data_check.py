"""Checking data before it costs a training: the forms in which data comes, and what was found, as plain values.

Each task says which forms it knows (`Task.data_forms`) and finds what only it can; what is wrong with pictures whatever
the task is found by `picture_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image

from castling.config import check_choice

NAMED = 10  # so many of each kind of finding are named; all are counted
Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One kind of thing that is wrong, or worth a look, in a split.

    Args:
        level: `error` for what spoils training or evaluation, `warning` for what may be meant so.
        kind: what it is, in plural.
        split: the split that it is in; several are joined by `and`.
        total: the number of all.
        first: the names of the first of them.
    """

    level: Level
    kind: str
    split: str
    total: int
    first: list[str]

    @property
    def line(self) -> str:
        """One line of text."""
        more = f" and {self.total - len(self.first)} more" if self.total > len(self.first) else ""
        return f"{self.level}: {self.split}: {self.total:,} {self.kind}: {', '.join(self.first)}{more}"


@dataclass(frozen=True)
class SplitReport:
    """What there is in a split.

    Args:
        name: the split.
        num_pictures: the number of its pictures.
        per_class: how often there is what, by name.
        picture_sizes: width and height of the smallest, the median and the largest picture.
        facts: what else a task counts, by name.
    """

    name: str
    num_pictures: int
    per_class: dict[str, int]
    picture_sizes: dict[str, tuple[int, int]]
    facts: dict[str, int] = field(default_factory=dict)


class Sample(NamedTuple):
    """A picture with what is known of it drawn in.

    Args:
        title: split and name.
        picture: the drawing.
        note: what is wrong with it; empty for nothing.
    """

    title: str
    picture: Image.Image
    note: str


@dataclass(frozen=True)
class DataReport:
    """What was found in a folder of data.

    Args:
        root: the folder.
        form: the name of the form that it was read in.
        unit: what is counted per class, in plural.
        splits: what there is.
        findings: what is wrong.
        samples: drawings.
        as_shares: whether people are told the share of a class, where counts are too large to be read.
    """

    root: Path
    form: str
    unit: str
    splits: list[SplitReport]
    findings: list[Finding]
    samples: list[Sample] = field(default_factory=list)
    as_shares: bool = False

    @property
    def num_errors(self) -> int:
        """How many things are wrong."""
        return sum(finding.total for finding in self.findings if finding.level == "error")

    @property
    def num_warnings(self) -> int:
        """How many things are worth a look."""
        return sum(finding.total for finding in self.findings if finding.level == "warning")

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the drawings."""
        splits, findings = ([asdict(entry) for entry in entries] for entries in (self.splits, self.findings))
        found = {"root": str(self.root), "format": self.form, "unit": self.unit, "errors": self.num_errors}
        return {**found, "splits": splits, "findings": findings}


@dataclass(frozen=True)
class CheckOptions:
    """How data is checked.

    Args:
        settings: values of the `data` section that a recipe would have, beside the root.
        num_samples: how many pictures of each split are drawn.
        workers: the number of reading processes; few pictures are read without.
        on_picture: a function that is told how many pictures are read, and of how many.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    num_samples: int = 0
    workers: int = 0
    on_picture: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True)
class DataForm:
    """A form in which data of a task can lie in a folder.

    Args:
        name: what it is called.
        layout: what is looked for, in words.
        fits: whether a folder looks like it.
        check: reads a folder of this form; raises ValueError or OSError if it cannot be used at all.
    """

    name: str
    layout: str
    fits: Callable[[Path], bool]
    check: Callable[[Path, CheckOptions], DataReport]


def check_data(
    root: Path | str, form: str, forms: Iterable[DataForm], options: CheckOptions | None = None
) -> DataReport:
    """Check a folder of data.

    Args:
        root: the folder.
        form: the name of its form, or `auto` to recognise it.
        forms: those that there are.
        options: how it is checked.

    Raises:
        ValueError: for an unknown form, a folder that no form or several fit, or one that cannot be used at all.
        FileNotFoundError: names the folder that is missing.
    """
    known = {known.name: known for known in forms}
    check_choice("format", form, ("auto", *known))
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    fitting = [known[form]] if form != "auto" else [candidate for candidate in known.values() if candidate.fits(root)]
    if len(fitting) > 1:
        raise ValueError(f"{root} could be {' or '.join(one.name for one in fitting)}: say which by --format")
    if not fitting:
        looked = "; ".join(f"{one.name}: {one.layout}" for one in known.values())
        there = ", ".join(sorted(path.name for path in root.iterdir())[:NAMED]) or "nothing"
        raise ValueError(f"no data recognised in {root}, which has {there}; looked for {looked}")
    return fitting[0].check(root, options or CheckOptions())


def finding(level: Level, kind: str, split: str, names: Sequence[str]) -> list[Finding]:
    """A finding about these names; none where there are no names.

    Example:
        >>> print(finding("error", "broken pictures", "val", ["a.jpg", "b.jpg"])[0].line)
        error: val: 2 broken pictures: a.jpg, b.jpg
    """
    return [Finding(level, kind, split, len(names), list(names[:NAMED]))] if names else []
