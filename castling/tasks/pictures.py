"""Pictures into batches: read, augmented by seed, collected; those that cannot be read give way to others by name.

Augmentation is seeded by epoch and example, so that a picture looks the same whoever reads it. Only reading may fail:
an error of a transform is an error of the program, and is raised, as is what is known of a picture and wrong.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS

from castling.sentences import one_line
from castling.tasks.batches import EpochBatches, Key, kept_generators, seed_host
from castling.tasks.stacking import Places, collated
from castling.tasks.task import Batch, Unreadable

MODES = {1: "L", 3: "RGB"}
ENDINGS = (*IMG_EXTENSIONS, ".gif", ".avif", ".jp2")
ORIENTATION = 0x0112  # Exif's number for how a picture is to be turned
MAX_UNREADABLE_IN_A_ROW = 100
MAX_PIXELS = 178_956_970  # width times height of the largest picture that is read: half a gigabyte in colour
DRAWN_BY_PROGRAMS = ("EPS",)  # by Ghostscript, which Pillow starts
DECODER_ERRORS = (  # what Pillow and its libraries raise for damaged files, beside OSError
    *(ValueError, SyntaxError, TypeError, AttributeError, EOFError, RuntimeError, AssertionError, MemoryError),
    *(LookupError, ArithmeticError, struct.error, zlib.error),
)
STOPS = (signal.SIGTERM, signal.SIGINT)
# Errors of a shared disk or of this process, not of a picture. Those that a system lacks are left out.
AWAY = {getattr(errno, name, None) for name in ("ESTALE", "ENOTCONN", "ETIMEDOUT", "EHOSTDOWN", "EMFILE", "ENFILE")}
AWAY -= {None}
Example = dict[str, Any]
Values = TypeVar("Values", bound=np.ndarray | torch.Tensor)


class WrongAnnotation(ValueError):
    """What is known of a picture cannot be right: it is to be mended, and no other picture steps in for it."""


class DataAway(OSError):
    """The place that pictures are in cannot be read: no other picture steps in, or all would be other ones."""


class Source(Protocol):
    """Pictures of one split with what is known of each, read one at a time."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """A stable name of a picture: its path relative to the root, or split and number."""

    def read(self, index: int) -> tuple[Image.Image, Any]:
        """A picture in its own mode, decoded to the end, and what is known of it; raises if it cannot be.

        Raises:
            WrongAnnotation: if the data is to be mended, rather than the picture left out.
        """


class Pictures(Dataset[Example]):
    """Examples of a source, as tensors.

    An unreadable picture gives way to the next one in training, and is left out in evaluation; its name travels with
    the example.

    Args:
        source: the pictures.
        transform: the function from a picture and what is known of it to the tensors of an example.
        channels: 1 for grey, 3 for colour.
        seed: the seed of the augmentation; None in evaluation.
    """

    def __init__(
        self,
        source: Source,
        transform: Callable[[Image.Image, Any], Example],
        channels: int = 3,
        seed: int | None = None,
    ) -> None:
        self.source, self.transform, self.channels, self.seed = source, transform, channels, seed

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Key) -> Example:
        """The example of a key, with the names of pictures that could not be read on the way."""
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[Key]) -> list[Example]:
        """The examples of a batch; to keep the generators for each of them would cost as much as decoding does."""
        with nullcontext() if self.seed is None else kept_generators():
            places = Places(len(keys))
            return [places.with_image(self._example(key)) for key in keys]

    def _example(self, key: Key) -> Example:
        unreadable: list[tuple[str, str]] = []
        for attempt in range(min(len(self), MAX_UNREADABLE_IN_A_ROW)):
            index = (key.example + attempt) % len(self)
            try:
                picture, known = self._read(index)
                picture = in_channels(picture, self.channels)
            except (WrongAnnotation, DataAway):
                raise
            except Exception as error:  # decoders raise whatever they like
                unreadable.append((self.source.name(index), f"{type(error).__name__}: {error}"))
                if self.seed is None:
                    return {"unreadable": unreadable}
            else:
                if self.seed is not None:
                    seed_host(self.seed, key.epoch, key.example, key.repeat)
                return {**self.transform(picture, known), "index": index, "unreadable": unreadable}
        raise ValueError(f"{len(unreadable)} pictures in a row cannot be read, first {': '.join(unreadable[0])}")

    def _read(self, index: int) -> tuple[Image.Image, Any]:
        """A picture and what is known of it; a second time where the system failed, which it may do for a moment."""
        try:
            return self.source.read(index)
        except OSError as error:
            if error.errno is None:  # as decoders raise it
                raise
            _check_place(error)
        try:
            return self.source.read(index)
        except OSError as error:
            _check_place(error)
            raise


def _check_place(error: OSError) -> None:
    """Tell a missing picture from a missing disk.

    Raises:
        DataAway: if the folder of the file cannot be read either, or nothing can be read at the moment.
    """
    folder = os.path.dirname(error.filename) if isinstance(error.filename, str) else None
    if error.errno in AWAY or (folder and error.errno is not None and not os.access(folder, os.R_OK | os.X_OK)):
        raise DataAway(f"the pictures cannot be read any more: {error}") from error


class PictureLoader:
    """Batches of pictures, as the task interface wants them.

    Args:
        pictures: the examples.
        batches: which of them make a batch, and where to begin.
        workers: the number of reading processes.
        collate: makes a batch of examples; by default every tensor is stacked.
        finish: what the training process does to the images of a batch.

    Attributes:
        on_unreadable: a function that is told the names and errors of pictures that could not be read.
    """

    def __init__(
        self,
        pictures: Pictures,
        batches: EpochBatches,
        workers: int = 0,
        collate: Callable[[list[Example]], Batch] = collated,
        finish: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.batches, self._finish = batches, finish
        self.num_examples, self.num_batches = len(pictures), batches.num_batches
        self.on_unreadable: Callable[[Unreadable], None] = lambda pictures: None
        self._loader: DataLoader[Any] = DataLoader(
            pictures,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=_ReadableOnly(collate),
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_begin_reading,
        )

    def __len__(self) -> int:
        return len(self.batches)

    def seek(self, epoch: int, start: int = 0) -> None:
        """Begin the next iteration in this epoch, with its batch number `start`."""
        self.batches.seek(epoch, start)

    def __iter__(self) -> Iterator[Batch]:
        try:
            for batch, unreadable in self._loader:
                if unreadable:
                    self.on_unreadable(unreadable)
                if batch is not None:
                    yield batch if self._finish is None else {**batch, "image": self._finish(batch["image"])}
        except DataAway as error:  # of a reading process, behind its traceback
            raise DataAway(str(error).rstrip().rpartition(f"{DataAway.__name__}: ")[2]) from error
        except (ConnectionError, EOFError) as error:  # killed while it sent a batch, before torch has noticed
            raise RuntimeError(f"DataLoader worker ended while it sent a batch: {error}") from error


class _ReadableOnly:
    """Collates what could be read, beside the names of what could not; an object, as loader workers must get it."""

    def __init__(self, collate: Callable[[list[Example]], Batch]) -> None:
        self.collate = collate

    def __call__(self, examples: list[Example]) -> tuple[Batch | None, list[tuple[str, str]]]:
        unreadable = [pair for example in examples for pair in example.pop("unreadable")]
        readable = [example for example in examples if example]
        return (self.collate(readable) if readable else None), unreadable


def in_channels(picture: Image.Image, channels: int) -> Image.Image:
    """A picture as grey (1) or colour (3) of 8 bits; opacity is left out.

    Those of 16 bits, which PIL would cut off at 255, and floats, which it would take for black, are scaled.

    Raises:
        ValueError: for floats that do not lie from 0 to 1.
    """
    if picture.mode == "F":
        picture = Image.fromarray((from_0_to_1(np.asarray(picture)) * 255).round().astype(np.uint8))
    elif picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture).clip(0, 65535) / 257).round().astype(np.uint8))
    return picture if picture.mode == MODES[channels] else picture.convert(MODES[channels])


def from_0_to_1(values: Values) -> Values:
    """The values of a picture in floats.

    Raises:
        ValueError: if they do not lie from 0 to 1.
    """
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(f"floats must lie from 0 to 1; got {low} to {high}")
    return values


def read_picture(path: Path | BinaryIO, size: Sequence[int] | None = None) -> Image.Image:
    """A picture in its own mode, decoded to the end and upright; the first one of a moving picture.

    Args:
        path: the file, by its path or opened.
        size: the width and height that annotations were made for. Where they are those of the picture as it is stored,
            and not of the upright one, it is left as it is stored.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, has too many pixels, or another program would have to draw it.
    """
    with open_picture_file(path) as stored:
        stored.load()
        picture = upright(stored)
    return stored if size is not None and picture.size != tuple(size) == stored.size else picture


@contextmanager
def open_picture_file(path: Path | BinaryIO) -> Iterator[Image.Image]:
    """A picture whose head was read, and found to be one that may be decoded.

    Whatever a decoder raises within, for which each has its own kinds of errors, becomes a ValueError.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, has too many pixels, or another program would have to draw it.
    """
    if isinstance(path, Path) and path.exists() and not path.is_file():  # a pipe would never end
        raise ValueError(f"{path} is no file")
    try:
        with strict_decoding(), Image.open(path) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"it has {width} x {height} pixels, and no more than {MAX_PIXELS:,} are read")
            if picture.format in DRAWN_BY_PROGRAMS:
                raise ValueError(f"{picture.format} files are drawn by a program, which is not started for them")
            yield picture
    except Image.DecompressionBombError as error:
        raise ValueError(f"it has too many pixels, no more than {MAX_PIXELS:,} are read: {one_line(error)}") from error
    except DECODER_ERRORS as error:
        raise ValueError(one_line(error) or f"the picture is damaged ({type(error).__name__})") from error
    except OSError as error:
        if error.errno is not None or isinstance(error, Image.UnidentifiedImageError):  # not of a decoder
            raise
        raise OSError(one_line(error)) from error


def upright(picture: Image.Image) -> Image.Image:
    """A picture turned as its Exif data says, which is how cameras and phones store how they were held."""
    return ImageOps.exif_transpose(picture) if _orientation(picture) > 1 else picture


def _orientation(picture: Image.Image) -> int:
    """How a picture is to be turned, 1 to 8; 1, not at all, where the Exif data is broken."""
    try:
        found = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # which is no reason to go without the picture
        return 1
    return found if found in range(1, 9) else 1


def pictures_in(folder: Path, root: Path) -> Iterator[str]:
    """Paths relative to `root` of all files in a folder and those below it that end as pictures do."""
    for path, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        prefix = Path(path).relative_to(root).as_posix()
        for file in files:
            if file.lower().endswith(ENDINGS) and not file.startswith("."):
                yield f"{prefix}/{file}"


@contextmanager
def strict_decoding() -> Iterator[None]:
    """Let truncated pictures raise, even where another library told PIL to fill in what is missing."""
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient


def _begin_reading(worker: int) -> None:
    """Prepare a reading process: one thread computes, and only its parent ends it.

    Schedulers and terminals signal whole groups. Were readers to die of it, their parent could not save its state.
    """
    torch.set_num_threads(1)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS and Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        threading.Thread(target=_end_when_parent_says, daemon=True).start()


def _end_when_parent_says() -> None:
    while signal.sigwaitinfo(STOPS).si_pid != os.getppid():
        pass
    os._exit(0)  # anything else makes torch raise an error in the parent, which is about to leave
