"""A predictor under load for long: several threads ask one predictor about pictures of changing sizes.

Whether every answer is the one that a single thread gets, and whether memory stays what it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
import psutil
from PIL import Image

SAMPLES = 20  # of memory, evenly over the pictures


@dataclass(frozen=True)
class SoakReport:
    """What came of it.

    Args:
        pictures: the number of pictures that the threads asked about.
        threads: the number of threads.
        seconds: the time that the threads took.
        different: pictures whose answer was another than that of one thread.
        memory: resident memory of the process in MiB, from time to time.
    """

    pictures: int
    threads: int
    seconds: float
    different: list[int]
    memory: list[float]

    @property
    def growth(self) -> float:
        """Memory in MiB that the last quarter had more than the second one, by medians: the first fills caches."""
        quarter = len(self.memory) // 4
        return float(np.median(self.memory[-quarter:]) - np.median(self.memory[quarter : 2 * quarter]))


def changing_picture(number: int, smallest: int = 16, largest: int = 200) -> Image.Image:
    """A picture of random colours and sides, the same for the same number.

    Example:
        >>> [changing_picture(number, 16, 64).size for number in range(2)]
        [(47, 57), (41, 39)]
    """
    random = np.random.default_rng(number)
    height, width = random.integers(smallest, largest, 2, endpoint=True)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))


def soak(
    answer: Callable[[Image.Image], Any],
    pictures: int,
    threads: int = 4,
    picture: Callable[[int], Image.Image] = changing_picture,
    on_picture: Callable[[], None] = lambda: None,
) -> SoakReport:
    """Ask about every picture once in one thread, then once more in several.

    Args:
        answer: gives the answer for a picture, as values that can be compared.
        pictures: the number of pictures.
        threads: the number of threads.
        picture: makes a picture by its number.
        on_picture: is called after each picture, twice for each.

    Raises:
        ValueError: for fewer pictures than samples of memory, or no thread.

    Example:
        >>> report = soak(lambda picture: picture.size, pictures=20, threads=2)
        >>> report.different, len(report.memory)
        ([], 20)
    """
    if pictures < SAMPLES or threads < 1:
        raise ValueError(f"expected at least {SAMPLES} pictures and one thread; got {pictures} and {threads}")

    def ask(number: int) -> Any:
        found = answer(picture(number))
        on_picture()
        return found

    wanted = [ask(number) for number in range(pictures)]
    different: list[int] = []
    memory: list[float] = []
    errors: list[BaseException] = []
    numbers = count()  # the next number is taken in one step, so that no two threads have the same
    process = psutil.Process()

    def work() -> None:
        try:
            for number in _below(numbers, pictures):
                if ask(number) != wanted[number]:
                    different.append(number)
                if (number + 1) * SAMPLES // pictures > number * SAMPLES // pictures:
                    memory.append(process.memory_info().rss / 2**20)
        except BaseException as error:
            errors.append(error)

    began = perf_counter()
    working = [threading.Thread(target=work) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    if errors:
        raise errors[0]
    return SoakReport(pictures, threads, perf_counter() - began, sorted(different), memory)


def _below(numbers: Iterator[int], end: int) -> Iterator[int]:
    while (number := next(numbers)) < end:
        yield number
