"""What is wrong with masks, before a training meets it: the checks that only segmentation knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from castling.settings import from_mapping
from castling.tasks.data_check import CheckOptions, DataForm, DataReport, Finding, Sample, SplitReport, finding
from castling.tasks.picture_check import (
    PictureFacts,
    duplicate_findings,
    look,
    picture_findings,
    read_all,
    sizes_of,
    spread,
    stored_finding,
)
from castling.tasks.pictures import in_channels, read_picture
from castling.tasks.segmentation.classes import IGNORED, ClassTable
from castling.tasks.segmentation.data import SegmentationData, find_pairs, layout_of, read_classes, relative
from castling.tasks.segmentation.drawing import as_palette, draw_labels, shrunk, with_legend
from castling.tasks.segmentation.layouts import LAYOUTS, Pairs, recognise
from castling.tasks.segmentation.masks import Value, read_mask, say_unknown, to_labels

SPLITS = ("train", "val", "test")
SAMPLE_SIDE = 480  # pixels of the longer side of a drawing


class MaskFacts(NamedTuple):
    """What a mask's file has.

    Args:
        size: width and height; zeros where it cannot be read.
        counts: pixels of each class, and of those that are ignored.
        unknown: pixels of each value that is neither.
        error: the reason why it cannot be read; None where it can.
    """

    size: tuple[int, int]
    counts: np.ndarray
    unknown: Mapping[Value, int]
    error: str | None


class PairFacts(NamedTuple):
    """What was found in a picture and its mask."""

    picture: PictureFacts
    mask: MaskFacts


def look_at_mask(path: Path, table: ClassTable) -> MaskFacts:
    """Decode a mask to the end, and count its values."""
    num_classes = len(table.names)
    try:
        values = read_mask(path)
        labels, unknown = to_labels(values, table)
    except Exception as error:  # decoders raise whatever they like
        return MaskFacts((0, 0), np.zeros(num_classes + 1, np.int64), {}, f"{type(error).__name__}: {error}")
    counts = np.bincount(labels.ravel(), minlength=IGNORED + 1)
    ignored = counts[IGNORED] - sum(unknown.values())
    return MaskFacts((values.shape[1], values.shape[0]), np.append(counts[:num_classes], ignored), unknown, None)


def look_at_pair(paths: tuple[Path, Path], table: ClassTable) -> PairFacts:
    """Decode a picture and its mask."""
    return PairFacts(look(paths[0]), look_at_mask(paths[1], table))


def check_segmentation(root: Path, form: str, options: CheckOptions) -> DataReport:
    """Check pictures with masks.

    Args:
        root: the folder.
        form: `ade20k`, `cityscapes` or `folders`.
        options: how it is checked; the settings are those of `SegmentationData`.

    Raises:
        ValueError: if nobody says what the classes are, or there is no split.
    """
    data = from_mapping(SegmentationData, {**options.settings, "root": str(root), "format": form}, "data")
    splits = _splits(data)
    if not splits:
        raise ValueError(f"no split in {root}: looked for {layout_of(form, 'train')}")
    table = read_classes(data)
    files = [pair for pairs in splits.values() for pair in zip(pairs.pictures, pairs.masks, strict=True)]
    seen = iter(read_all(partial(look_at_pair, table=table), files, options))
    looks = {split: [next(seen) for _ in pairs.pictures] for split, pairs in splits.items()}
    names = {split: [relative(path, root) for path in pairs.pictures] for split, pairs in splits.items()}
    findings, samples = [], []
    for split, pairs in splits.items():
        notes = _notes(looks[split])
        findings += _split_findings(split, pairs, names[split], looks[split], root)
        findings += _class_findings(split, looks[split], table)
        samples += _samples(split, pairs, names[split], looks[split], notes, table, options.num_samples)
    pictures = {split: [one.picture for one in looks[split]] for split in splits}
    findings += duplicate_findings({split: (names[split], pictures[split]) for split in splits})
    findings.sort(key=lambda found: found.level)  # errors first; in order otherwise
    reports = [_describe(split, pairs, looks[split], table) for split, pairs in splits.items()]
    return DataReport(root, form, "pixels", reports, findings, samples, as_shares=True)


def _form(name: str) -> DataForm:
    return DataForm(
        name,
        layout_of(name, "train"),
        fits=lambda root: recognise(root) == name,
        check=lambda root, options: check_segmentation(root, name, options),
    )


FORMS = tuple(_form(name) for name in LAYOUTS)


def _splits(data: SegmentationData) -> dict[str, Pairs]:
    """The files of each split; those that stand in for another are not there twice."""
    found: dict[str, Pairs] = {}
    for split in SPLITS:
        pairs = find_pairs(data, split)
        if pairs is not None and all(pairs.pictures != others.pictures for others in found.values()):
            found[split] = pairs
    return found


def _notes(looks: Sequence[PairFacts]) -> dict[int, str]:
    """What is wrong with masks that can be drawn, by the place of their picture."""
    notes = {}
    for place, (picture, mask) in enumerate(looks):
        differs = picture.error is None and mask.error is None and mask.size not in (picture.size, picture.stored)
        wrong = ["another size than its picture"] * differs + [say_unknown(mask.unknown)] * bool(mask.unknown)
        if wrong:
            notes[place] = ", ".join(wrong)
    return notes


def _split_findings(
    split: str, pairs: Pairs, names: Sequence[str], looks: Sequence[PairFacts], root: Path
) -> list[Finding]:
    masks = [relative(path, root) for path in pairs.masks]
    facts = list(zip(masks, looks, strict=True))
    broken = [f"{name} ({mask.error})" for name, (_, mask) in facts if mask.error is not None]
    unknown = [f"{name} ({say_unknown(mask.unknown)})" for name, (_, mask) in facts if mask.unknown]
    differing = [
        f"{name} (is {_shown(mask.size)}, its picture {_shown(picture.size)})"
        for name, (picture, mask) in facts
        if picture.error is None and mask.error is None and mask.size not in (picture.size, picture.stored)
    ]
    blank = [
        name for name, (_, mask) in facts if mask.error is None and not mask.unknown and not mask.counts[:-1].sum()
    ]
    return [
        *finding("error", "pictures without a mask", split, [relative(path, root) for path in pairs.without_mask]),
        *finding("error", "masks without a picture", split, [relative(path, root) for path in pairs.without_picture]),
        *finding("error", "masks that cannot be read", split, broken),
        *finding("error", "masks with values that are no class", split, unknown),
        *finding("error", "masks of another size than their picture", split, differing),
        *finding("warning", "masks that are ignored throughout", split, blank),
        *stored_finding(split, names, [picture for picture, _ in looks], [mask.size for _, mask in looks]),
        *picture_findings(split, names, [picture for picture, _ in looks]),
    ]


def _class_findings(split: str, looks: Sequence[PairFacts], table: ClassTable) -> list[Finding]:
    counts = _total(looks, table)
    unused = [name for name, count in zip(table.names, counts, strict=False) if not count]
    return finding("warning", "classes without a pixel", split, unused)


def _describe(split: str, pairs: Pairs, looks: Sequence[PairFacts], table: ClassTable) -> SplitReport:
    counts = _total(looks, table).tolist()
    per_class = dict(zip(table.names, counts, strict=False))
    unknown = sum(sum(mask.unknown.values()) for _, mask in looks)
    facts = {"pixels": sum(counts[:-1]), "ignored pixels": counts[-1], "pixels of no class": unknown}
    sizes = sizes_of(picture for picture, _ in looks)
    return SplitReport(split, len(pairs.pictures) + len(pairs.without_mask), per_class, sizes, facts)


def _total(looks: Sequence[PairFacts], table: ClassTable) -> np.ndarray:
    """Pixels of each class, and of those that are ignored, in a split."""
    return np.sum([np.zeros(len(table.names) + 1, np.int64), *(mask.counts for _, mask in looks)], axis=0)


def _samples(
    split: str,
    pairs: Pairs,
    names: Sequence[str],
    looks: Sequence[PairFacts],
    notes: Mapping[int, str],
    table: ClassTable,
    count: int,
) -> list[Sample]:
    """Drawings: of pictures with bad masks first, but for half of them at most, then from all over the split."""
    readable = [place for place, (picture, mask) in enumerate(looks) if picture.error is None and mask.error is None]
    chosen = spread([place for place in readable if place in notes], count // 2)
    chosen += spread([place for place in readable if place not in notes], count - len(chosen))
    colors = as_palette(table.colors, len(table.names))
    samples = []
    for place in chosen:
        picture = in_channels(read_picture(pairs.pictures[place], looks[place][1].size), 3)
        small, labels = shrunk(picture, to_labels(read_mask(pairs.masks[place]), table).labels, SAMPLE_SIDE)
        there = [label for label in np.unique(labels).tolist() if label != IGNORED]
        words = [table.names[label] for label in there]
        drawn = with_legend(draw_labels(small, labels, colors), words, [colors[label] for label in there])
        samples.append(Sample(f"{split}: {names[place]}", drawn, notes.get(place, "")))
    return samples


def _shown(size: tuple[int, int]) -> str:
    return " x ".join(map(str, size))
