"""The page of the playground: a picture, a size, what every network says, takes and attends to; made with gradio.

Nothing is fetched from elsewhere and nobody is told: fonts are the system's, analytics are off.
"""

from __future__ import annotations

import html
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from castling.conversion import Certificate
from castling.extras import import_extra
from castling.report.explanation import Explanation
from castling.report.model_card import results_markdown
from castling.report.run_data import RunData
from castling.report.run_figures import draw_occupancy
from castling.sentences import one_line

logger = logging.getLogger(__name__)

STYLE = """
.castling-bar { display: flex; align-items: center; gap: .5rem; margin: .25rem 0; flex-wrap: wrap; }
.castling-bar span { flex: 0 0 6rem; }
.castling-bar div { height: 1rem; background: #2a5db0; border-radius: 2px; min-width: 2px; }
.castling-bar.castled div { background: #22873a; }
footer { display: none !important; }
"""
SHOWN: dict[str, Any] = {"interactive": False, "buttons": ["fullscreen", "download"]}  # and none that shares
LONGEST = 40  # percent of the width, so that names and numbers have room on a narrow screen
LEAST_SIDE = 384  # pixels of the picture that is clicked
NO_PICTURE = "Drop a picture, or take a sample."


class Shown(Protocol):
    """What one network made of a picture."""

    network: str
    said: str
    drawn: Image.Image | None
    milliseconds: float | None
    mebibytes: float | None


class Answered(Protocol):
    """What all networks made of it."""

    looks: Sequence[Any]
    agreement: float | None


class Played(Protocol):
    """A run, or a file, that can be played with."""

    name: str
    run: RunData | None
    trained: list[str]
    attends: bool
    sizes: tuple[int, int, int, int]

    def view(self, picture: Any, size: int | None = None) -> Image.Image:
        """The picture as the networks see it."""

    def looks(self, picture: Any, size: int | None = None) -> Iterator[Any]:
        """Show a picture to all networks, one after the other."""

    def explain(self, picture: Any, at: Sequence[float], size: int | None = None) -> Explanation:
        """What is attended to from a place."""

    def samples(self) -> list[Image.Image]:
        """Some pictures."""


def make_page(players: Sequence[Played]) -> Any:
    """The page, with a tab for each run.

    Args:
        players: the runs.

    Raises:
        ImportError: if gradio is missing; names the extra.
    """
    gradio = import_extra("gradio", "play")
    with gradio.Blocks(title="Castling", analytics_enabled=False) as page:
        gradio.Markdown("# Castling\nOne picture, several networks: what they say, what they cost, where they look.")
        with gradio.Tabs():
            for player in players:
                with gradio.Tab(player.name):
                    _tab(gradio, player)
    return page


def launch_options() -> dict[str, Any]:
    """How the page is shown: the system's fonts, our style, errors as a sentence."""
    gradio = import_extra("gradio", "play")
    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    quiet = {"share": False, "show_error": True, "footer_links": []}
    return {"theme": theme, "css": STYLE, "max_file_size": "64mb", **quiet}


def _tab(gradio: Any, player: Played) -> None:
    """The parts of a run and what happens between them."""
    samples = player.samples()
    smallest, largest, step, side = player.sizes
    picture, place = gradio.State(None), gradio.State((0.5, 0.5))
    with gradio.Row():
        with gradio.Column(min_width=280):
            file = gradio.File(label="Picture", file_types=["image"], type="filepath")
            names = [f"sample {number}" for number in range(1, 1 + len(samples))]
            sample = gradio.Dropdown(names, value=None, label="or one of the run's own", visible=bool(samples))
            several = {"step": step, "visible": smallest < largest}
            size = gradio.Slider(smallest, largest, value=side, label="Side of the picture, pixels", **several)
        with gradio.Column(min_width=280):
            said = gradio.Markdown(NO_PICTURE, elem_classes="castling-said")
            bars = gradio.HTML()
    with gradio.Row():
        drawn = [gradio.Image(label=name, **SHOWN, height=320, min_width=280) for name in player.trained]
    with gradio.Column(visible=player.attends):
        gradio.Markdown("### Where it looks\nClick a place of the picture, or move both sliders and press the button.")
        with gradio.Row():
            with gradio.Column(min_width=280):
                view = gradio.Image(label="What the networks see", **SHOWN, type="pil", height=384)
                across = gradio.Slider(0, 1, value=0.5, step=0.01, label="from the left")
                down = gradio.Slider(0, 1, value=0.5, step=0.01, label="from the top")
                ask = gradio.Button("Where does this place look?")
            with gradio.Column(min_width=280):
                relevance = gradio.Image(label="What spoke for it (orange), against (blue)", **SHOWN, height=384)
        gradio.Markdown("Where the place attends to in each attention, and below it where softmax would:")
        attention = gradio.Image(label="Attention", show_label=False, **SHOWN)
    if player.run is not None:
        with gradio.Accordion("Masks over training, and the certificate", open=False):
            _about(gradio, player.run)

    nothing = [None] * len(drawn)

    def show(path: Any, pixels: float) -> Any:
        try:
            return None if path is None else _large(player.view(path, int(pixels)))
        except Exception:  # decoders raise whatever they like, and `look` says it
            return None

    def look(path: Any, pixels: float) -> Iterator[tuple[Any, ...]]:
        if path is None:
            yield NO_PICTURE, "", *nothing
            return
        try:
            for answer in player.looks(path, int(pixels)):
                drawings = {one.network: one.drawn for one in answer.looks}
                yield _words(answer), _bars(answer.looks), *(drawings[name] for name in player.trained)
        except Exception as error:  # decoders raise whatever they like
            logger.info("%s: %s", path, one_line(error))
            yield f"**This cannot be shown:** {one_line(error)}", "", *nothing

    def attend(path: Any, pixels: float, at: tuple[float, float]) -> tuple[Any, Any]:
        if path is None:
            return None, None
        try:
            found = player.explain(path, at, int(pixels))
        except ValueError as error:
            gradio.Warning(one_line(error))
            return None, None
        return found.draw_attention(), found.draw_relevance()

    def clicked(event: Any, path: Any, pixels: float, seen: Image.Image | None) -> tuple[Any, ...]:
        if seen is None:
            return (0.5, 0.5), 0.5, 0.5, None, None
        x, y = (min(max(where / length, 0.0), 1.0) for where, length in zip(event.index, seen.size, strict=True))
        return (x, y), round(x, 2), round(y, 2), *attend(path, pixels, (x, y))

    clicked.__annotations__ = {"event": gradio.SelectData}  # which is how gradio knows that the event is wanted
    asked = lambda path, pixels, x, y: ((x, y), *attend(path, pixels, (x, y)))  # noqa: E731
    rows = [attention, relevance]
    showing: dict[str, Any] = {"fn": show, "inputs": [picture, size], "outputs": view}
    looking: dict[str, Any] = {"fn": look, "inputs": [picture, size], "outputs": [said, bars, *drawn]}
    attending: dict[str, Any] = {"fn": attend, "inputs": [picture, size, place], "outputs": rows}
    chosen = file.change(lambda path: path, file, picture), sample.change(_chosen(samples), sample, picture)
    for given in (*(event.then for event in chosen), size.release):
        for what in (showing, looking, attending) if player.attends else (looking,):
            given(**what)
    view.select(clicked, [picture, size, view], [place, across, down, *rows])
    ask.click(asked, [picture, size, across, down], [place, *rows])


def _large(view: Image.Image) -> Image.Image:
    """A picture that is large enough to be clicked."""
    times = -(-LEAST_SIDE // max(view.size))
    return view.resize((view.width * times, view.height * times), Image.Resampling.NEAREST)


def _chosen(samples: Sequence[Image.Image]) -> Callable[[str | None], Image.Image | None]:
    return lambda name: None if name is None else samples[int(name.rpartition(" ")[2]) - 1]


def _words(answer: Answered) -> str:
    """What each network says, and how far both agree."""
    lines = [f"**{one.network}**: {one.said}" for one in answer.looks if one.said]
    if answer.agreement is not None:
        lines.append(f"Castled, it says the same: {answer.agreement:.0%}")
    return "\n\n".join(lines)


def _bars(looks: Sequence[Shown]) -> str:
    """Time and memory of each network as bars; no memory where none is known."""
    times, memory = [one.milliseconds for one in looks], [one.mebibytes for one in looks]
    shown = [("Time of a pass", "ms", times)]
    if any(value is not None for value in memory):
        shown.append(("Memory of weights and a pass", "MiB", memory))
    parts = []
    for title, unit, values in shown:
        parts.append(f"<h4>{title}</h4>")
        longest = max((value for value in values if value is not None), default=1.0)
        for one, value in zip(looks, values, strict=True):
            width = LONGEST * (value or 0.0) / longest
            kind = "castling-bar castled" if one.network == "castled" else "castling-bar"
            name, number = html.escape(one.network), "-" if value is None else f"{value:.3g} {unit}"
            parts.append(f'<div class="{kind}"><span>{name}</span><div style="width:{width:.1f}%"></div>{number}</div>')
    return "".join(parts)


def _about(gradio: Any, run: RunData) -> None:
    """How masks emptied in training, and what castling cost."""
    if any(step.occupancy for step in run.steps):
        folder = Path(tempfile.mkdtemp(prefix="castling-play-"))
        with Image.open(draw_occupancy(run, folder / "masks.png")) as figure:
            gradio.Image(figure.copy(), label="Entries that survive the mask", **SHOWN)
    if run.certificate is None:
        gradio.Markdown("This run was not castled yet: castling castle writes a certificate.")
    else:
        gradio.Markdown(results_markdown(Certificate.from_json(run.certificate)))
