"""Archives that the tests make: members as pairs of name and content, and pictures to put into them."""

import io
import tarfile
from typing import NamedTuple

import numpy as np
from PIL import Image


class NoFile(NamedTuple):
    """A member of another kind, in place of content."""

    kind: bytes


def picture_bytes(seed, size=(12, 10), kind="PNG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def tar_bytes(members, form=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content.kind, "0.png"
                tar.addfile(info)
    return buffer.getvalue()


def write_tar(path, members, form=tarfile.USTAR_FORMAT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members, form))
    return path


def example(key, seed, label=None, ending="cls"):
    """A picture, and its label where it has one."""
    members = [(f"{key}.png", picture_bytes(seed))]
    return members if label is None else [*members, (f"{key}.{ending}", str(label).encode())]


def write_shards(root, split, labels, per_shard=4, start=0):
    """Shards of pictures with these labels, each with its number as key and seed."""
    for shard, first in enumerate(range(0, len(labels), per_shard)):
        some = enumerate(labels[first : first + per_shard], start + first)
        members = [member for seed, label in some for member in example(f"{seed:04d}", seed, label)]
        write_tar(root / f"{split}-{shard:06d}.tar", members)


def write_imagenet(root, train=(("n02", 3), ("n01", 2)), val=("n02", "n01", "n02")):
    """ImageNet's two archives; classes and pictures stand in no order in the first."""
    inner, seed = [], 0
    for label, count in train:
        members = [(f"{label}_{number}.JPEG", picture_bytes(seed + number, kind="JPEG")) for number in range(count)]
        inner.append((f"{label}.tar", tar_bytes(members[::-1])))
        seed += count
    write_tar(root / "ILSVRC2012_img_train.tar", inner)
    members = [
        (f"ILSVRC2012_val_{number:08d}.JPEG", picture_bytes(90 + number, kind="JPEG")) for number in range(len(val))
    ]
    write_tar(root / "ILSVRC2012_img_val.tar", members[::-1])
    (root / "val_labels.txt").write_text("\n".join(val))
