"""The shipped recipes: YAML files, found by their path without the ending, such as `digits/castling`; and studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from castling.config import check_choice

ROOT = Path(__file__).parent
STUDIES = ROOT / "studies"  # grids of recipes, which are no recipes themselves


def recipe_names() -> list[str]:
    """Names of all shipped recipes.

    Example:
        >>> "digits/castling" in recipe_names()
        True
    """
    found = (path for path in ROOT.rglob("*.yaml") if STUDIES not in path.parents)
    return sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in found)


def study_names() -> list[str]:
    """Names of all shipped studies.

    Example:
        >>> "kernels" in study_names()
        True
    """
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: one that exists, or a shipped one by its name.

    Raises:
        ValueError: if there is neither; names the nearest.
    """
    return _find("recipe", name, recipe_names(), ROOT)


def find_study(name: str | Path) -> Path:
    """The file of a study: one that exists, or a shipped one by its name.

    Raises:
        ValueError: if there is neither; names the nearest.
    """
    return _find("study", name, study_names(), STUDIES)


def _find(kind: str, name: str | Path, known: Sequence[str], folder: Path) -> Path:
    if Path(name).is_file():
        return Path(name)
    if Path(name).suffix in (".yaml", ".yml"):
        raise ValueError(f"there is no {kind} file {name}")
    check_choice(kind, str(name), known)
    return folder / f"{name}.yaml"


def describe_recipe(name: str) -> str:
    """The first line of a recipe's header."""
    first = find_recipe(name).read_text().splitlines()[0]
    return first.lstrip("# ").strip()
