"""What is wrong with folders and archives of labelled pictures, before a training meets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from castling.tasks.data_check import CheckOptions, DataForm, DataReport, Finding, Sample, SplitReport, finding
from castling.tasks.picture_check import Stored, duplicate_findings, look_at, picture_findings, sizes_of, spread
from castling.tasks.picture_sources import alike_but_for_capitals
from castling.tasks.pictures import in_channels, pictures_in, read_picture
from castling.tasks.shards.layout import EXPECTED, has_archives
from castling.tasks.shards.listing import list_archives

SPLITS = {"train": ("train",), "val": ("val", "validation"), "test": ("test",)}
SAMPLE_SIDE = 320  # pixels of the longer side of a drawing
Classes = dict[str, list[str]]  # names of pictures by class


def check_folder(root: Path, options: CheckOptions) -> DataReport:
    """Check folders as ImageNet's: `train/CLASS/*.jpg` and `val/CLASS/*.jpg`.

    Args:
        root: the folder of the splits.
        options: how it is checked; there are no settings.

    Raises:
        ValueError: for settings, or if there are no class folders.
    """
    if options.settings:
        raise ValueError(f"the format 'folder' has no settings; got {', '.join(options.settings)}")
    found = {split: _classes(root, names) for split, names in SPLITS.items()}
    splits = {split: classes for split, classes in found.items() if classes}
    if "train" not in splits:
        raise ValueError(f"no class folders in {root / 'train'}")
    names = {split: [name for files in classes.values() for name in files] for split, classes in splits.items()}
    places = {split: [root / name for name in files] for split, files in names.items()}
    return _look_through(
        DataReport(root, "folder", "pictures", [], _class_findings(splits)), splits, names, places, options
    )


def check_shards(root: Path, options: CheckOptions) -> DataReport:
    """Check tar archives: WebDataset's shards, or ImageNet's own.

    Args:
        root: the folder of the archives.
        options: how it is checked; there are no settings.

    Raises:
        ValueError: for settings, or if there is no picture in the archives.
    """
    if options.settings:
        raise ValueError(f"the format 'shards' has no settings; got {', '.join(options.settings)}")
    found = list_archives(root, SPLITS)
    if not any(listing.pictures for listing in found.values()):
        troubles = [f"{one.kind}: {', '.join(one.first)}" for listing in found.values() for one in listing.findings]
        raise ValueError(f"no pictures in the archives of {root}" + "".join(f"; {trouble}" for trouble in troubles))
    splits = {split: listing.classes for split, listing in found.items()}
    names = {split: [picture.name for picture in listing.pictures] for split, listing in found.items()}
    places = {split: listing.pictures for split, listing in found.items()}
    findings = [finding for listing in found.values() for finding in listing.findings]
    if "train" in splits:
        findings += _class_findings(splits)
    return _look_through(DataReport(root, "shards", "pictures", [], findings), splits, names, places, options)


def _look_through(
    report: DataReport,
    splits: dict[str, Classes],
    names: Mapping[str, Sequence[str]],
    places: Mapping[str, Sequence[Path | Stored]],
    options: CheckOptions,
) -> DataReport:
    """Look at all pictures and add what there is and what is wrong with them.

    Args:
        report: what is known already.
        splits: names of pictures by split and class.
        names: names of pictures by split.
        places: where these pictures are.
        options: how they are looked at.
    """
    seen = iter(look_at([place for some in places.values() for place in some], options))
    looks = {split: [next(seen) for _ in files] for split, files in names.items()}
    for split, files in names.items():
        report.findings.extend(picture_findings(split, files, looks[split]))
        counts = {label: len(members) for label, members in splits[split].items()}
        report.splits.append(SplitReport(split, len(files), counts, sizes_of(looks[split])))
        readable = [number for number, look in enumerate(looks[split]) if look.error is None]
        for number in spread(readable, options.num_samples):
            place = places[split][number]
            picture = in_channels(read_picture(place.open() if isinstance(place, Stored) else place), 3)
            picture.thumbnail((SAMPLE_SIDE, SAMPLE_SIDE))
            report.samples.append(Sample(files[number], picture, ""))
    report.findings.extend(duplicate_findings({split: (names[split], looks[split]) for split in splits}))
    report.findings.sort(key=lambda finding: finding.level)
    return report


def _fits(root: Path) -> bool:
    """Whether training pictures lie in several class folders."""
    return sum(bool(files) for files in _classes(root, SPLITS["train"]).values()) > 1


FORMS = (
    DataForm("folder", "train/CLASS/*.jpg and val/CLASS/*.jpg", _fits, check_folder),
    DataForm("shards", EXPECTED, has_archives, check_shards),
)


def _classes(root: Path, names: tuple[str, ...]) -> Classes:
    split = next((root / name for name in names if (root / name).is_dir()), None)
    folders = sorted(path for path in split.iterdir() if path.is_dir() and path.name[0] != ".") if split else []
    return {folder.name: sorted(pictures_in(folder, root)) for folder in folders}


def _class_findings(splits: dict[str, Classes]) -> list[Finding]:
    found: list[Finding] = []
    for split, classes in splits.items():
        found += finding("error", "classes that train lacks", split, sorted(classes.keys() - splits["train"].keys()))
        empty = sorted(label for label in splits["train"] if not classes.get(label))
        found += finding("warning", "classes without pictures", split, empty)
    alike = alike_but_for_capitals(sorted(splits["train"]))
    found += finding("warning", "classes that differ in capital letters alone", "train", alike)
    return found
