"""Tasks: each a room behind one interface, which is all that training, castling, export and reports know of it.

A recipe names its task: one of those here, or a class of the user's own as `package.module:Class`.
"""

from __future__ import annotations

import importlib

from castling.config import check_choice
from castling.sentences import one_line, shown
from castling.tasks.data_check import DataForm
from castling.tasks.task import Task

TASKS: dict[str, str | type[Task]] = {
    "classification": "castling.tasks.classification.task:Classification",
    "detection": "castling.tasks.detection.task:Detection",
    "embedding": "castling.tasks.embedding.task:Embedding",
    "pretraining": "castling.tasks.pretraining.task:Pretraining",
    "segmentation": "castling.tasks.segmentation.task:Segmentation",
}


def find_task(name: object) -> type[Task]:
    """The class of a task.

    Args:
        name: a name in `TASKS`, or `package.module:Class`.

    Raises:
        ValueError: if there is no such task; names those that there are.

    Example:
        >>> find_task("classification").__name__
        'Classification'
    """
    if not isinstance(name, str) or ":" not in name:
        check_choice("task", name, TASKS)
    found = TASKS.get(str(name), str(name))
    if isinstance(found, str):
        module, _, kind = found.partition(":")
        try:
            found = getattr(importlib.import_module(module), kind)
        except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: a name that none can have
            raise ValueError(f"there is no task {shown(name)}: {one_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ValueError(f"{shown(name)} is no castling.tasks.Task")
    return found


def data_forms() -> list[DataForm]:
    """The forms in which data of any task can be checked.

    Example:
        >>> [form.name for form in data_forms()]
        ['folder', 'shards', 'coco', 'voc', 'yolo', 'ade20k', 'cityscapes', 'folders']
    """
    return [form for name in TASKS for form in find_task(name).data_forms()]


__all__ = ["TASKS", "Task", "data_forms", "find_task"]
