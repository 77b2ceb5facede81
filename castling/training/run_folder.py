"""The folder of a run: recipe, facts, environment, log, events, quarantine, checkpoints, figures, summary.

`log.jsonl` holds only what the recipe determines, and is cut back to a checkpoint when the run goes back to it: the log
of a run that was interrupted is that of one that was not. What happened on the clock goes to `events.jsonl`.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from castling.measure.environment import describe_environment
from castling.measure.plain_json import json_text
from castling.settings import read_yaml
from castling.tasks.task import Facts
from castling.training.recipe import Recipe, parse_recipe, recipe_text
from castling.training.records import EvalRecord, Record, StepRecord, read_record

logger = logging.getLogger(__name__)
FACTS, NETWORK = "facts.json", "network.json"


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
                f"{self.path} holds a run already: go on with 'castling train {self.path}', or name another folder"
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

    def recipe(self) -> Recipe:
        """The recipe of the run.

        Raises:
            ValueError: if there is no run.
        """
        if not self.is_run():
            raise ValueError(f"{self.path} is no run folder: it has no config.yaml")
        return parse_recipe(read_yaml((self.path / "config.yaml").read_text(), str(self.path / "config.yaml")))

    def facts(self) -> Facts:
        """What the task keeps beside the weights.

        Raises:
            ValueError: if they are not there, or damaged.
        """
        return self._read_json(FACTS)

    def network(self) -> dict[str, Any]:
        """What is known of the network without building it."""
        return self._read_json(NETWORK)

    def log(self, record: Record) -> None:
        """Append a record to the log."""
        if self.writes:
            with self.log_path.open("a") as file:
                file.write(json_text(record.to_json()) + "\n")

    def records(self) -> list[Record]:
        """The log; a last line that was cut short is left out.

        Raises:
            ValueError: for a line that is no record; names it.
        """
        lines = self.log_path.read_text().splitlines(keepends=True) if self.log_path.is_file() else []
        found = []
        for number, line in enumerate(lines, 1):
            if line.endswith("\n"):
                try:
                    found.append(read_record(json.loads(line)))
                except (TypeError, KeyError, ValueError) as error:
                    raise ValueError(f"{self.log_path}, line {number} is no record: {error}") from error
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

    def event(self, what: str, **details: Any) -> None:
        """Note something that happened, with the time, and say it."""
        if self.writes:
            logger.info("%s%s", what, "".join(f", {key} {value}" for key, value in details.items()))
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            with (self.path / "events.jsonl").open("a") as file:
                file.write(json_text({"time": now, "event": what, **details}) + "\n")

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
                line = json_text({"name": name, "error": error, "split": split}) + "\n"
                with (self.path / "quarantine.jsonl").open("a") as file:
                    file.write(line)
        count = len(known | set(errors))
        if count > limit * total:
            raise ValueError(
                f"{count} of {total} pictures of {split} cannot be read, more than the share of {limit:g} that "
                f"training.max_unreadable allows; their names are in {self.path / 'quarantine.jsonl'}"
            )

    def quarantined(self) -> list[dict[str, str]]:
        """The unreadable pictures so far."""
        path = self.path / "quarantine.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def summary(self) -> dict[str, Any]:
        """The summary of a finished run."""
        return self._read_json("summary.json")

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path} must hold an object; got {type(content).__name__}")
        return content

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        if self.writes:
            write_file(self.path / name, json_text(value, indent=2).encode())


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
