"""The shipped recipes: YAML files, found by their path without the ending, such as `digits/castling`."""

from __future__ import annotations

from pathlib import Path

from castling.config import check_choice

ROOT = Path(__file__).parent


def recipe_names() -> list[str]:
    """Names of all shipped recipes.

    Example:
        >>> "digits/castling" in recipe_names()
        True
    """
    return sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: one that exists, or a shipped one by its name.

    Raises:
        ValueError: if there is neither; names the nearest.
    """
    if Path(name).is_file():
        return Path(name)
    if Path(name).suffix in (".yaml", ".yml"):
        raise ValueError(f"there is no recipe file {name}")
    check_choice("recipe", str(name), recipe_names())
    return ROOT / f"{name}.yaml"


def describe_recipe(name: str) -> str:
    """The first line of a recipe's header."""
    first = find_recipe(name).read_text().splitlines()[0]
    return first.lstrip("# ").strip()
