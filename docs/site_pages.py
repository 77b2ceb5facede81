"""What the site has beside the pages of this folder: README and its neighbours, and the reference of the package.

Pages link to each other as files of the repository, so that they work there too. Links out of this folder become links
to the site's pages where there is one, and plain words where there is none.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
REFERENCE = {
    "castling": ["castling"],
    "attention": [
        f"castling.{name}"
        for name in (
            "config",
            *(f"attention.{part}" for part in ("linear_angular", "kernels", "auxiliary", "threshold", "local_conv")),
            *(f"attention.{part}" for part in ("module", "mlp", "rotary", "reference")),
        )
    ],
    "models": [f"castling.models.{name}" for name in ("deit", "levit", "mvitv2", "lcnet_vit", "esnet_vit")],
    "conversion": [
        f"castling.conversion.{name}" for name in ("replace", "converted", "calibration", "switch", "certificate")
    ],
    "tasks": [f"castling.tasks.{name}" for name in ("task", "prediction", "networks", "preparation")],
    "training": [f"castling.training.{name}" for name in ("recipe", "config", "saved", "run_folder", "schedules")],
    "measure": [
        f"castling.measure.{name}"
        for name in ("metric", "macs", "latency", "memory", "occupancy", "attention_facts", "attention_rows")
    ],
    "exporting": [f"castling.exporting.{name}" for name in ("write", "verify", "engines", "int8", "metadata")],
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


class Doctests(griffe.Extension):
    """Lets examples be shown as code: the reader of docstrings knows them by the plural alone."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Called with everything that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in this folder."""
    for name, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for name, modules in REFERENCE.items():
        options = "    options:\n      members: true\n" if name == "castling" else ""
        parts = [f"# castling.{name}" if name != "castling" else "# castling"]
        parts += [f"::: {module}\n{options}" for module in modules]
        files.append(File.generated(config, f"reference/{name}.md", content="\n\n".join(parts)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as the site has them."""
    source = page.file.src_uri
    if source.startswith("reference/"):
        return markdown
    beside = {page: name for name, page in BESIDE.items()}
    folder = "" if source in beside else "docs"

    def linked(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        path, hash_mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        place = posixpath.normpath(posixpath.join(folder, path))
        page_of_site = BESIDE.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
        if page_of_site is None:
            return text
        return f"{image}[{text}]({page_of_site}{hash_mark}{anchor})"

    return LINK.sub(linked, markdown)
