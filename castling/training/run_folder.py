"""The folder of a run: recipe, facts, environment, log, events, quarantine, checkpoints, figures, summary.

`log.jsonl` holds only what the recipe determines, and is cut back to a checkpoint when the run goes back to it: the log
of a run that was interrupted is that of one that was not. What happened on the clock goes to `events.jsonl`.
"""

from __future__ import annotations

import datetime
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from castling.measure.environment import describe_environment
from castling.measure.plain_json import json_text, parse_json, read_object
from castling.plain_values import plain_value
from castling.settings import read_yaml
from castling.tasks.task import Facts, Task
from castling.training.recipe import Recipe, parse_recipe, recipe_text
from castling.training.records import EvalRecord, Record, StepRecord, read_record

logger = logging.getLogger(__name__)
FACTS, NETWORK = "facts.json", "network.json"
SIDES = ("model", "castled")  # of a summary's metrics


class RunFolder:
    """Reads and writes the files of a run; processes other than the first one (`writes=False`) write none of them.

    Args:
        path: the folder.
        writes: whether this process writes.
    """

    def __init__(self, path: Path | str, writes: bool = True) -> None:
        self.path, self.writes = Path(path), writes
        self.log_path = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def create(self, recipe: Recipe, facts: Facts, network: dict[str, Any]) -> None:
        """Begin a run here.

        Args:
            recipe: the recipe of the run.
            facts: what the task keeps beside the weights.
            network: what is to be known of the network without building it.

        Raises:
            ValueError: if there is a run already.
            OSError: if the folder cannot be written to.
        """
        if not self.writes:
            return
        if self.is_run():
            raise ValueError(
                f"{self.path} holds a run already: name another folder, or go on with: "
                f"castling train {shlex.quote(str(self.path))}"
            )
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            (self.path / "figures").mkdir(exist_ok=True)
            environment = {**describe_environment(), "command": shlex.join(sys.argv), "seed": str(recipe.seed)}
            write_file(self.path / "environment.json", json_text(environment, indent=2).encode())
            for name, value in ((FACTS, facts), (NETWORK, network)):
                write_file(self.path / name, json_text(value, indent=2).encode())
            self.log_path.touch()
            write_file(self.path / "config.yaml", recipe_text(recipe).encode())  # last: now it is a run
        except OSError as error:
            raise OSError(f"cannot write to the run folder {self.path}: {error}") from error

    def is_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.yaml").is_file()

    def is_finished(self) -> bool:
        """Whether the run was summarised, which is the last that it does."""
        return (self.path / "summary.json").is_file()

    def recipe(self) -> Recipe:
        """The recipe of the run.

        Raises:
            ValueError: if there is no run, or its recipe is none.
        """
        if not self.is_run():
            raise ValueError(f"{self.path} is no run folder: it has no config.yaml")
        file = self.path / "config.yaml"
        values = read_yaml(file.read_bytes(), str(file))
        try:
            return parse_recipe(values)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    def facts(self) -> Facts:
        """What the task keeps beside the weights.

        Raises:
            ValueError: if they are not there, or damaged.
        """
        return read_object(self.path / FACTS)

    def task(self, recipe: Recipe | None = None) -> Task:
        """The task of the run, which needs no data.

        Args:
            recipe: what `recipe` gave; read where it was not.

        Raises:
            ValueError: if there is no run, or its facts are not those of its task.
        """
        recipe, facts = recipe or self.recipe(), self.facts()
        try:
            return recipe.make_task(facts)
        except ValueError as error:
            raise ValueError(f"{self.path}: {FACTS} does not fit config.yaml: {error}") from error

    def network(self) -> dict[str, Any]:
        """What is known of the network without building it."""
        return read_object(self.path / NETWORK)

    def log(self, record: Record) -> None:
        """Append a record to the log.

        Raises:
            OSError: if it cannot be written; names the file.
        """
        if self.writes:
            _append(self.log_path, record.to_json())

    def records(self) -> list[Record]:
        """The log; a last line that was cut short is left out.

        Raises:
            ValueError: for a line that is no record; names it.
        """
        found = []
        for where, line in _lines(self.log_path):
            if line.endswith(b"\n"):
                try:
                    found.append(read_record(parse_json(line, "it")))
                except ValueError as error:
                    raise ValueError(f"{where} is no record: {error}") from error
        return found

    def steps(self) -> list[StepRecord]:
        """The logged steps."""
        return [record for record in self.records() if isinstance(record, StepRecord)]

    def evals(self) -> list[EvalRecord]:
        """The evaluations."""
        return [record for record in self.records() if isinstance(record, EvalRecord)]

    def log_size(self) -> int:
        """Bytes of the log, safe on the disk."""
        with self.log_path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut_log(self, size: int) -> None:
        """Forget what was logged after a checkpoint."""
        if self.writes:
            os.truncate(self.log_path, min(size, self.log_size()))

    def begin_anew(self) -> None:
        """Forget all that was logged, and make room for checkpoints."""
        if self.writes:
            self.cut_log(0)
            self.checkpoints.mkdir(exist_ok=True)

    def event(self, what: str, **details: Any) -> None:
        """Note something that happened, with the time, and say it."""
        if self.writes:
            logger.info("%s%s", what, "".join(f", {key} {value}" for key, value in details.items()))
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            _append(self.path / "events.jsonl", {"time": now, "event": what, **details})

    def quarantine(self, pictures: Iterable[tuple[str, str]], split: str, limit: float, total: int) -> None:
        """Note unreadable pictures by name, from any process.

        Args:
            pictures: names with errors; those known already are passed over.
            split: the split that they are from.
            limit: share of `total` that may be unreadable.
            total: pictures of the split.

        Raises:
            ValueError: if there are more.
        """
        errors = dict(pictures)
        if not errors:
            return
        known = {line["name"] for line in self.quarantined() if line["split"] == split}
        for name, error in errors.items():
            if name not in known:
                logger.warning("unreadable picture %s: %s", name, error)
                _append(self.path / "quarantine.jsonl", {"name": name, "error": error, "split": split})
        count = len(known | set(errors))
        if count > limit * total:
            raise ValueError(
                f"{count} of {total} pictures of {split} cannot be read, more than the share of {limit:g} that "
                f"training.max_unreadable allows; their names are in {self.path / 'quarantine.jsonl'}"
            )

    def quarantined(self) -> list[dict[str, str]]:
        """The unreadable pictures so far.

        Raises:
            ValueError: for a line that names no picture.
        """
        found = []
        for where, line in _lines(self.path / "quarantine.jsonl"):
            found.append(plain_value(parse_json(line, where), dict[str, str], where))
            if not {"name", "error", "split"} <= set(found[-1]):
                raise ValueError(f"{where} does not say 'name', 'error' and 'split' of a picture")
        return found

    def summary(self) -> dict[str, Any]:
        """The summary of a finished run.

        Raises:
            ValueError: if it is not there, or damaged.
        """
        path = self.path / "summary.json"
        content = read_object(path)
        for key, kind in (("metrics", list[dict[str, Any]]), *((side, dict[str, float] | None) for side in SIDES)):
            if key in content:
                plain_value(content[key], kind, f"{path}: {key}")
        return content

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        if self.writes:
            write_file(self.path / name, json_text(value, indent=2).encode())


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file, each with its place in words; none where there is no such file."""
    content = path.read_bytes() if path.is_file() else b""
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        yield f"{path}, line {number}", line


def _append(path: Path, line: dict[str, Any]) -> None:
    try:
        with path.open("a") as file:
            file.write(json_text(line) + "\n")
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it to the disk and rename it, so that it is whole or not there."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
