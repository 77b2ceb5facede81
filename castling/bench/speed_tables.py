"""What was measured of speed, as tables for README and docs: from the newest file of each processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from castling.bench.candidates import patch_of
from castling.bench.figures import short_name
from castling.bench.models import PATCH_STUDY_SIZE, paper_ratios
from castling.bench.results_file import number_in, read_rows
from castling.config import check_choice
from castling.models import deit
from castling.report.marks import markdown_table, marked, write_marked

MARK = "speed "
SUMMARY = ("deit_tiny", "deit_base", "levit_256", "mvitv2_tiny")
SIZES, PATCHES = (224, 512, 1024), (4, 2)
KINDS = ("castled", "softmax", "host")

Row = Mapping[str, str]


def write_speed_tables(page: Path, results: Path) -> None:
    """Write tables between the marks of a Markdown file, `<!-- castling speed NAME: begin -->`.

    Args:
        page: the file. Names are `summary`, `all` and `memory` (of `castling bench models`), `attention`, `parts` and
            `forms` (of the scripts of these names in `benchmarks`).
        results: the folder of the CSV files.

    Raises:
        ValueError: if the file has no such marks or one of another name, or there are no results.
    """
    names = [mark for mark in marked(page) if mark.startswith(MARK)]
    if not names:
        raise ValueError(f"{page} has no marks of speed, such as <!-- castling {MARK}summary: begin -->")
    for name in names:
        check_choice("table of speed", name.removeprefix(MARK), TABLES)
    texts = {}
    for name in names:
        stem, table = TABLES[name.removeprefix(MARK)]
        found = newest_rows(results, stem)
        texts[name] = "\n\n".join(f"{_place(rows)}:\n\n{table(rows)}" for rows in found)
    for name, text in texts.items():
        write_marked(page, name, text)


def newest_rows(results: Path, stem: str = "models") -> list[list[dict[str, str]]]:
    """The rows of the newest file of each processor.

    Args:
        results: the folder of the CSV files.
        stem: what was measured.

    Raises:
        ValueError: if there is no file.
    """
    newest: dict[str, list[dict[str, str]]] = {}
    for path in sorted(results.glob(f"{stem}-*.csv"), key=lambda path: path.stem[-len("2030-01-02") :]):
        rows = read_rows(path)
        newest |= {rows[0]["processor"]: rows} if rows else {}
    if not newest:
        raise ValueError(f"{results} has no file {stem}-*.csv")
    return list(newest.values())


def summary(rows: Sequence[Row]) -> str:
    """Times faster than the softmax twin, in brackets than the plain host; the fastest engine in float32 is bold."""
    columns = [(size, None) for size in SIZES] + [(PATCH_STUDY_SIZE, patch) for patch in PATCHES]
    by_place = {
        (short_name(row["model"]), row["engine"], place): row
        for row in rows
        for place in columns
        if row["batch"] == "1" and _is_at(row, *place)
    }
    columns = [place for place in columns if any(found[2] == place for found in by_place)]
    lines = []
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    float32 = [engine for engine in engines if not engine.endswith("bf16")]
    for model in SUMMARY:
        fastest = {
            place: min(
                (row for engine in float32 if (row := by_place.get((model, engine, place))) and row["castled_ms"]),
                key=lambda row: float(row["castled_ms"]),
                default=None,
            )
            for place in columns
        }
        for engine in engines:
            found = [by_place.get((model, engine, place)) for place in columns]
            if any(found):
                cells = [_ratios(row, fastest[place]) for row, place in zip(found, columns, strict=True)]
                lines.append([f"{model}, {engine}", *cells])
    heads = [f"{size} px" if patch is None else f"patch {patch}" for size, patch in columns]
    return markdown_table(["model, engine", *heads], lines)


def everything(rows: Sequence[Row]) -> str:
    """A line for each row: medians, ratios, the bound and the paper's ratio."""
    heads = ["model", "engine", "px", "patch", "images", *(f"{kind}, ms" for kind in KINDS)]
    heads += ["over softmax", "over host", "MAC bound", "paper"]
    lines = [
        [
            short_name(row["model"]),
            *(row[column] for column in ("engine", "size", "patch", "batch")),
            *(_median(row, kind) for kind in KINDS),
            *(_number(row, column, "{:.2f}x") for column in ("speedup_over_softmax", "speedup_over_host", "mac_bound")),
            "" if (paper := paper_ratios(row)["speedup"]) is None else f"{paper:.2f}x",
        ]
        for row in rows
    ]
    return markdown_table(heads, lines, num_text=2)


def memory(rows: Sequence[Row]) -> str:
    """Peak memory of a pass with everything that the network and the engine hold, one process for each number."""
    heads = ["model", "engine", "px", "patch", "images", *(f"{kind}, MiB" for kind in KINDS), "castled to softmax"]
    lines = []
    for row in rows:
        castled, softmax = (number_in(row, f"{kind}_peak_mib") for kind in KINDS[:2])
        if castled is not None:
            cells = [_number(row, f"{kind}_peak_mib", "{:,.0f}") for kind in KINDS]
            share = "" if not softmax else f"{castled / softmax:.2f}"
            place = [row[column] for column in ("engine", "size", "patch", "batch")]
            lines.append([short_name(row["model"]), *place, *cells, share])
    return markdown_table(heads, lines, num_text=2)


def parts(rows: Sequence[Row]) -> str:
    """Parts of a network in native code, or by oneDNN, and by torch's operators."""
    heads = ["part", "tokens", "channels", "native, ms", "torch, ms", "faster"]
    lines = [
        [
            *(row[column] for column in ("part", "tokens", "channels")),
            *(_number(row, column, "{:.3f}") for column in ("native_ms", "torch_ms")),
            _number(row, "faster", "{:.1f}x"),
        ]
        for row in rows
    ]
    return markdown_table(heads, lines)


def forms(rows: Sequence[Row]) -> str:
    """What forms of the attention cost: medians, and those over the authors' form."""
    places = list(dict.fromkeys((row["engine"], row["size"]) for row in rows))
    cells = {
        (row["form"], row["engine"], row["size"]): "{} ({})".format(
            _number(row, "median_ms", "{:.1f}"), _number(row, "over_authors", "{:.3f}")
        )
        for row in rows
    }
    names = list(dict.fromkeys(row["form"] for row in rows))
    lines = [[f"`{form}`", *(cells.get((form, *place), "") for place in places)] for form in names]
    return markdown_table(["form", *(f"{engine}, {size} px" for engine, size in places)], lines)


def attention(rows: Sequence[Row]) -> str:
    """Linear-angular attention over the number of tokens: how many times faster than fused softmax."""
    heads = ["tokens", "fewer MACs", "eager", "compiled", "eager, for inference"]
    lines = [
        [
            f"{int(row['tokens']):,}",
            _times(int(row["tokens"]) / int(row["head_dim"])),
            *(_times(number_in(row, f"sdpa_over_{form}")) for form in ("eager", "compiled", "folded")),
        ]
        for row in sorted(rows, key=lambda row: int(row["tokens"]))
    ]
    return markdown_table(heads, lines)


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "summary": ("models", summary),
    "all": ("models", everything),
    "memory": ("models", memory),
    "attention": ("attention", attention),
    "parts": ("parts", parts),
    "forms": ("forms_cost", forms),
}


def _is_at(row: Row, size: int, patch: int | None) -> bool:
    if row["size"] != str(size) or (patch is not None and row["model"] not in deit.SIZES):
        return False
    return int(row["patch"]) == (patch or patch_of(row["model"]))


def _ratios(row: Row | None, fastest: Row | None) -> str:
    if row is None or not row["castled_ms"]:
        return ""
    text = f"{_number(row, 'speedup_over_softmax', '{:.2f}x')} ({_number(row, 'speedup_over_host', '{:.2f}x')})"
    return f"**{text}**" if row is fastest else text


def _median(row: Row, kind: str) -> str:
    """A median, and the quartiles of the rounds."""
    columns = (f"{kind}_ms", f"{kind}_lower_quartile_ms", f"{kind}_upper_quartile_ms")
    found = [number_in(row, column) for column in columns]
    if None in found:
        return ""
    median, lower, upper = (f"{value:,.1f}" if value and value < 1000 else f"{value:,.0f}" for value in found)
    return f"{median} ({lower} to {upper})"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def _number(row: Row, column: str, form: str) -> str:
    value = number_in(row, column)
    return "" if value is None else form.format(value)


def _place(rows: Sequence[Row]) -> str:
    """Where rows were measured."""
    said = [
        ", ".join(dict.fromkeys(row[column] for row in rows)) for column in ("processor", "threads", "torch", "commit")
    ]
    return "{}, {} threads, torch {}, commit {}".format(*said)
