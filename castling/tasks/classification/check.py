"""What is wrong with folders of labelled pictures, before a training meets it."""

from __future__ import annotations

from pathlib import Path

from castling.tasks.data_check import CheckOptions, DataForm, DataReport, Finding, Sample, SplitReport, finding
from castling.tasks.picture_check import duplicate_findings, look_at, picture_findings, sizes_of, spread
from castling.tasks.pictures import in_channels, pictures_in, read_picture

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
    seen = iter(look_at([root / name for files in names.values() for name in files], options))
    looks = {split: [next(seen) for _ in files] for split, files in names.items()}
    findings = _class_findings(splits)
    reports, samples = [], []
    for split, files in names.items():
        findings += picture_findings(split, files, looks[split])
        counts = {label: len(members) for label, members in splits[split].items()}
        reports.append(SplitReport(split, len(files), counts, sizes_of(looks[split])))
        readable = [place for place, look in enumerate(looks[split]) if look.error is None]
        for place in spread(readable, options.num_samples):
            picture = in_channels(read_picture(root / files[place]), 3)
            picture.thumbnail((SAMPLE_SIDE, SAMPLE_SIDE))
            samples.append(Sample(files[place], picture, ""))
    findings += duplicate_findings({split: (names[split], looks[split]) for split in splits})
    findings.sort(key=lambda finding: finding.level)
    return DataReport(root, "folder", "pictures", reports, findings, samples)


def _fits(root: Path) -> bool:
    """Whether training pictures lie in several class folders."""
    return sum(bool(files) for files in _classes(root, SPLITS["train"]).values()) > 1


FORMS = (DataForm("folder", "train/CLASS/*.jpg and val/CLASS/*.jpg", _fits, check_folder),)


def _classes(root: Path, names: tuple[str, ...]) -> Classes:
    split = next((root / name for name in names if (root / name).is_dir()), None)
    folders = sorted(path for path in split.iterdir() if path.is_dir() and path.name[0] != ".") if split else []
    return {folder.name: sorted(pictures_in(folder, root)) for folder in folders}


def _class_findings(splits: dict[str, Classes]) -> list[Finding]:
    found: list[Finding] = []
    for split, classes in splits.items():
        found += finding("error", "classes that train lacks", split, sorted(classes.keys() - splits["train"].keys()))
        empty = sorted(label for label, files in classes.items() if not files)
        found += finding("warning", "class folders without pictures", split, empty)
    return found
