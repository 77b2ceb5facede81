"""The card of a published network: what it is, what it reached and how to use it, as Hugging Face shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from castling.conversion import Certificate
from castling.measure.metric import headlines
from castling.report.marks import markdown_table

PIPELINES = {
    "classification": "image-classification",
    "detection": "object-detection",
    "segmentation": "image-segmentation",
}
MOST_LABELS = 20
METHOD = "The method: Castling-ViT (CVPR 2023), arXiv 2211.10526."


@dataclass(frozen=True)
class Card:
    """What a card says.

    Args:
        name: the name of the folder.
        licence: the licence of the weights.
        task: the task of its run.
        architecture: the class of transformers that loads it.
        auto_class: the `AutoModel` that finds that class.
        model: the name of the network.
        castled: whether the branch was dropped.
        certificate: what castling cost; None where there is none.
        parameters: their number.
        macs: multiply-accumulates of one picture.
        image_size: height and width that those are of.
        labels: names of the classes.
        recipe: the recipe of its run.
        timm: whether timm loads it too.
        figures: captions of figures by their files.
    """

    name: str
    licence: str
    task: str
    architecture: str
    auto_class: str
    model: str
    castled: bool
    certificate: Certificate | None
    parameters: int
    macs: int
    image_size: tuple[int, int]
    labels: Sequence[str]
    recipe: Mapping[str, Any]
    timm: bool
    figures: Mapping[str, str]


def write_card(card: Card) -> str:
    """The card as Markdown, behind the YAML that Hugging Face reads."""
    pipeline = PIPELINES[card.task]
    about = {
        "license": card.licence,
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "tags": ["castling", "linear-attention", "vision-transformer", *(["timm"] if card.timm else [])],
    }
    height, width = card.image_size
    form = "castled: no softmax attention, cost linear in the number of tokens" if card.castled else "with its branch"
    use = [
        "import castling  # tells transformers of it",
        f"from transformers import {card.auto_class}, pipeline",
        "",
        f'model = {card.auto_class}.from_pretrained("{card.name}")',
        f'say = pipeline("{pipeline}", model="{card.name}")',
        'print(say("picture.jpg"))',
    ]
    parts = [
        f"---\n{yaml.safe_dump(about, sort_keys=False)}---",
        f"# {card.name}",
        f"`{card.model}` for {card.task}, {form}. {card.parameters / 1e6:.2f} M parameters, "
        f"{card.macs / 1e9:.3f} G MACs at {height} x {width} px. Written by `castling publish`.",
        "## Use",
        _code("python", *use),
    ]
    if card.timm:
        load = f'timm.create_model("local-dir:{card.name}", pretrained=True)'
        parts.append(_code("python", "import castling, timm", "", f"model = {load}.eval()"))
    if card.certificate is not None:
        parts += ["## What it reached", results_markdown(card.certificate)]
    for file, caption in card.figures.items():
        parts.append(f"![{caption}]({file})\n\n{caption}")
    if card.labels:
        more = f", and {len(card.labels) - MOST_LABELS} more" if len(card.labels) > MOST_LABELS else ""
        parts += ["## Classes", ", ".join(card.labels[:MOST_LABELS]) + more]
    recipe = yaml.safe_dump(dict(card.recipe), sort_keys=False)
    parts += ["## How it was trained", _code("yaml", recipe.strip()), METHOD]
    return "\n\n".join(parts) + "\n"


def _code(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def results_markdown(certificate: Certificate) -> str:
    """The metrics of each network of a certificate, and its verdict."""
    shown = {name: headlines(network.metrics) for name, network in certificate.networks.items()}
    names = [metric.name for metric in next(iter(shown.values()))]
    rows = [[name, *(metric.shown for metric in metrics)] for name, metrics in shown.items()]
    verdict = (
        f"Verdict: {certificate.verdict}, {certificate.lost:.2f} {certificate.unit} lost by castling, on "
        f"{certificate.num_examples} pictures (`certificate.json`)."
    )
    return f"{markdown_table(['network', *names], rows)}\n\n{verdict}"
