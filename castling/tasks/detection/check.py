"""What is wrong with boxes, before a training meets it: the checks that only detection knows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from castling.settings import from_mapping
from castling.tasks.data_check import CheckOptions, DataForm, DataReport, Finding, Sample, SplitReport, finding
from castling.tasks.detection.annotations import Written, degenerate, leaving, shown
from castling.tasks.detection.data import LAYOUTS, DetectionData, read_split, recognise
from castling.tasks.detection.drawing import draw_boxes
from castling.tasks.picture_check import (
    PictureFacts,
    duplicate_findings,
    look_at,
    picture_findings,
    sizes_of,
    spread,
    stored_finding,
)
from castling.tasks.pictures import in_channels, read_picture

SPLITS = ("train", "val", "test")
SMALL, LARGE = 32**2, 96**2  # areas in pixels between which COCO counts boxes as medium
TOLERABLE = ("partly outside", "there twice")  # kinds of bad boxes that training takes
SAMPLE_SIDE = 480  # pixels of the longer side of a drawing


def check_detection(root: Path, form: str, options: CheckOptions) -> DataReport:
    """Check pictures with boxes.

    Args:
        root: the folder.
        form: `coco`, `voc` or `yolo`.
        options: how it is checked; the settings are those of `DetectionData`.

    Raises:
        ValueError: if a file cannot be read at all, or there is no split.
    """
    data = from_mapping(DetectionData, {**options.settings, "root": str(root), "format": form}, "data")
    read = {split: read_split(data, split) for split in SPLITS}
    splits = {split: written for split, written in read.items() if written is not None}
    if not splits:
        raise ValueError(f"no split in {root}: looked for {LAYOUTS[form].replace('{split}', 'train')}")
    paths = [written.folder / name for written in splits.values() for name in written.names]
    seen = iter(look_at(paths, options))
    looks = {split: [next(seen) for _ in written.names] for split, written in splits.items()}
    findings, samples = [], []
    for split, written in splits.items():
        bad = _bad_boxes(written)
        findings += _split_findings(split, written, looks[split], bad)
        samples += _samples(split, written, looks[split], bad, options.num_samples)
    findings += _undescribed(splits) + _class_findings(splits)
    findings += duplicate_findings({split: (written.names, looks[split]) for split, written in splits.items()})
    findings.sort(key=lambda found: found.level)  # errors first; in order otherwise
    reports = [_describe(split, written, looks[split]) for split, written in splits.items()]
    return DataReport(root, form, "boxes", reports, findings, samples)


def _form(name: str) -> DataForm:
    return DataForm(
        name,
        LAYOUTS[name].replace("{split}", "train"),
        fits=lambda root: recognise(root) == name,
        check=lambda root, options: check_detection(root, name, options),
    )


FORMS = tuple(_form(name) for name in LAYOUTS)


def _bad_boxes(written: Written) -> dict[str, np.ndarray]:
    """Places of boxes that something is wrong with, by kind."""
    boxes, limits = written.corners(), written.limits()
    masks = degenerate(boxes, limits)
    kept = ~np.any(list(masks.values()), axis=0)
    unknown = np.array([box.category not in written.classes for box in written.boxes], bool)
    seen: set[Hashable] = set()
    again = np.zeros(len(boxes), bool)
    for place, box in enumerate(written.boxes):
        key = (box.owner, box.category, box.corners)
        again[place] = key in seen
        seen.add(key)
    masks |= {"of an unknown class": unknown, "partly outside": kept & leaving(boxes, limits), "there twice": again}
    return {kind: np.flatnonzero(mask) for kind, mask in masks.items()}


def _split_findings(
    split: str, written: Written, looks: Sequence[PictureFacts], bad: dict[str, np.ndarray]
) -> list[Finding]:
    found = finding("error", "broken annotations", split, written.broken)
    for kind, places in bad.items():
        names = [written.place(written.boxes[place]) for place in places]
        if kind == "of an unknown class":
            names = [f"{written.boxes[place].category!r} of {name}" for place, name in zip(places, names, strict=True)]
        found += finding("warning" if kind in TOLERABLE else "error", f"boxes {kind}", split, names)
    found += finding("error", "annotations without a picture", split, written.strays)
    differing = [
        f"{name} (is {shown(seen.size)}, said {shown(size)})"
        for name, seen, size in zip(written.names, looks, written.sizes, strict=True)
        if seen.error is None and min(size) > 0 and tuple(size) not in (seen.size, seen.stored)
    ]
    found += finding("error", "pictures of another size than their annotation says", split, differing)
    found += stored_finding(split, written.names, looks, written.sizes)
    return found + picture_findings(split, written.names, looks)


def _undescribed(splits: dict[str, Written]) -> list[Finding]:
    """Pictures that no file describes; a folder may be that of several splits."""
    described = {
        written.folder / name
        for written in splits.values()
        for name, file in zip(written.names, written.files, strict=True)
        if file is not None
    }
    found: list[Finding] = []
    for split, written in splits.items():
        without = [name for name, file in zip(written.names, written.files, strict=True) if file is None]
        names = [name for name in without + written.unlisted if written.folder / name not in described]
        described |= {written.folder / name for name in names}  # told of once
        found += finding("warning", "pictures without annotation", split, names)
    return found


def _class_findings(splits: dict[str, Written]) -> list[Finding]:
    """Classes that training does not have, and those that it has no box of."""
    first, *others = splits
    classes = splits[first].classes
    found: list[Finding] = []
    for split in others:
        differing = splits[split].classes.items() ^ classes.items()
        names = sorted(f"{name} ({number})" for number, name in differing)
        found += finding("error", "classes in one list only", f"{first} and {split}", names)
    used = {box.category for box in splits[first].boxes}
    unused = [name for number, name in classes.items() if number not in used]
    return found + finding("warning", "classes without a box", first, unused)


def _describe(split: str, written: Written, looks: Sequence[PictureFacts]) -> SplitReport:
    counts = Counter(box.category for box in written.boxes)
    boxes, limits = written.corners(), written.limits()
    usable = ~np.any(list(degenerate(boxes, limits).values()), axis=0)
    boxes = np.clip(boxes, 0, np.tile(limits, 2))[usable]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    facts = {
        "boxes": len(written.boxes),
        "crowd": sum(box.crowd for box in written.boxes),
        "pictures without boxes": len(written.names) - len({box.owner for box in written.boxes}),
        "small boxes": int((areas < SMALL).sum()),
        "medium boxes": int(((areas >= SMALL) & (areas < LARGE)).sum()),
        "large boxes": int((areas >= LARGE).sum()),
    }
    per_class = {name: counts[number] for number, name in written.classes.items()}
    return SplitReport(split, len(written.names), per_class, sizes_of(looks), facts)


def _samples(
    split: str, written: Written, looks: Sequence[PictureFacts], bad: dict[str, np.ndarray], count: int
) -> list[Sample]:
    """Drawings: of pictures with bad boxes first, but for half of them at most, then from all over the split."""
    notes: dict[int, list[str]] = defaultdict(list)
    for kind, places in bad.items():
        for owner in sorted({written.boxes[place].owner for place in places}):
            notes[owner].append(f"boxes {kind}")
    readable = [place for place, seen in enumerate(looks) if seen.error is None]
    chosen = spread([place for place in readable if place in notes], count // 2)
    chosen += spread([place for place in readable if place not in notes], count - len(chosen))
    labels = {number: place for place, number in enumerate(written.classes)}
    by_owner = defaultdict(list)
    for box in written.boxes:
        by_owner[box.owner].append(box)
    samples = []
    for place in chosen:
        picture = in_channels(read_picture(written.folder / written.names[place], written.sizes[place]), 3)
        scale = SAMPLE_SIDE / max(picture.size)
        picture = picture.resize([max(1, round(side * scale)) for side in picture.size])
        boxes = [box for box in by_owner[place] if np.isfinite(box.corners).all()]
        captions = [written.classes.get(box.category, f"{box.category!r}?") for box in boxes]
        corners = [[number * scale for number in box.corners] for box in boxes]
        colors = [labels.get(box.category, len(labels)) for box in boxes]
        drawn = draw_boxes(picture, corners, captions, colors)
        samples.append(Sample(f"{split}: {written.names[place]}", drawn, ", ".join(notes.get(place, []))))
    return samples
