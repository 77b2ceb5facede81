"""The sentences of a report: numbers as people read them, the verdict, and captions that say what a figure shows.

Each is made from the run's files alone, so that a page never claims what its run did not measure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from castling.measure.metric import Metric
from castling.report.run_data import CASTLED, SOFTMAX, RunData, Trajectory, or_nan

MISSING = "\N{EN DASH}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as percent; small ones keep two significant digits, and only a true zero is 0 %.

    Example:
        >>> percent(0.9812), percent(0.00123), percent(0.0), percent(1e-7), percent(None) == MISSING
        ('98.1 %', '0.12 %', '0 %', '0.00001 %', True)
    """
    if share is None or not math.isfinite(share):
        return MISSING
    value = 100 * share
    if 0 < abs(value) < 1:
        digits = max(digits, 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{digits}f}".rstrip("0").rstrip(".") + " %"
    return f"{value:.{digits}f} %" if value else "0 %"


def shown(metric: Metric | None) -> str:
    """A metric as people read it; a dash where there is none."""
    return MISSING if metric is None else metric.shown


def loss_between(before: Metric, after: Metric) -> str:
    """What is lost from one metric to another, in the unit of their differences.

    Example:
        >>> loss_between(Metric("top1", 0.99), Metric("top1", 0.9777))
        '1.23 points'
    """
    return f"{before.lost_by(after) + 0.0:.2f} {before.difference_unit}".rstrip()


def amount(value: float) -> str:
    """A large count with three digits and a letter.

    Example:
        >>> amount(999), amount(123_456), amount(1_180_000_000)
        ('999', '123 K', '1.18 G')
    """
    for size, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " K")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}" if abs(value) < 999.5 * size else f"{value / size:.0f}{letter}"
    return f"{value:g}"


def duration(seconds: float) -> str:
    """A time span in its two largest units.

    Example:
        >>> duration(42.4), duration(754), duration(9000)
        ('42 s', '12 min 34 s', '2 h 30 min')
    """
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def metric_name(run: RunData) -> str:
    """The deciding metric's name."""
    return "metric" if run.metric is None else run.metric.name


def before_castling(run: RunData) -> str:
    """What the network that is to be castled is called."""
    return "as converted" if run.is_converted else "with the branch"


def run_labels(runs: Sequence[RunData]) -> list[str]:
    """A short name for every run: its folder, with the folder above where two are called the same."""
    names = [run.name for run in runs]
    return [f"{run.folder.resolve().parent.name}/{run.name}" if names.count(run.name) > 1 else run.name for run in runs]


def layer_label(layer: str) -> str:
    """The numbers in a layer's name, which tell it from the others.

    Example:
        >>> layer_label("blocks.3.attn"), layer_label("stages.1.blocks.0.attn"), layer_label("attn")
        ('3', '1.0', 'attn')
    """
    return ".".join(re.findall(r"\d+", layer)) or layer


def num_tokens_at(run: RunData, size: int) -> int | None:
    """Tokens of the first layer for an image of this side, from those that the certificate counted; None if unknown."""
    layers = (run.certificate or {}).get("layers")
    if not layers:
        return None
    per_side = math.isqrt(layers[0]["num_tokens"])  # a class token or two do not make another row
    return (per_side * size // run.image_size) ** 2


HEADLINES = {
    "free": ("Castling is free", "The softmax branch can be dropped"),
    "cheap": ("Castling is cheap", "The softmax branch can be dropped at a small price"),
    "unused": ("The branch was never used", "No mask ever opened, so dropping the softmax branch proves nothing"),
    "not yet": ("Not yet", "The softmax branch still carries weight"),
}
CONVERTED_HEADLINES = {
    "free": ("Converted for free", "The castled network gives what the original gave"),
    "cheap": ("Converted at a small price", "The castled network can stand in for the original"),
    "unused": HEADLINES["unused"],
    "not yet": ("Not yet", "The castled network is not fit to stand in for the original"),
}


def verdict(run: RunData) -> tuple[str, str, str]:
    """The verdict of a run: its colour's name (the verdict, or `none`), a headline and a sentence."""
    certificate = run.certificate
    if certificate is None:
        if run.is_baseline:
            return "none", "Softmax baseline", "This network has no auxiliary branch: there is nothing to castle."
        progress = "It has finished." if run.summary else "It may still be going on."
        return "none", "No certificate yet", f"What castling costs this run has not been measured. {progress}"
    networks = list(certificate["networks"].values())
    before, after = (Metric(**networks[place]["metrics"][0]) for place in (0, -1))
    headlines = CONVERTED_HEADLINES if len(networks) > 2 else HEADLINES
    headline, opening = headlines[certificate["verdict"]]
    effect = (
        f"stays at {before.shown}"
        if before.shown == after.shown
        else f"goes from {before.shown} to {after.shown}: {loss_between(before, after)} lost where "
        f"{certificate['tolerance']:g} are tolerated"
    )
    num_examples, agreement = certificate["num_examples"], networks[0]["agreement"]
    same = f"all {num_examples:,}" if agreement == 1 else f"{percent(agreement)} of {num_examples:,}"
    sentence = f"{opening}: {before.name} {effect}, and {same} answers stay the same."
    return certificate["verdict"].replace(" ", "-"), headline, sentence


def describe_metric(runs: Sequence[RunData]) -> str:
    """Where the curves of the deciding metric end."""
    sentences = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        if not run.evals:
            continue
        last = run.evals[-1]
        name = "The softmax baseline" if run.is_baseline else "The run" if run is runs[0] else f"{label}"
        ends = f"{name} stands at {last.model[0].shown} after {last.epoch:g} epochs"
        castled = f" {before_castling(run)} and {last.castled[0].shown} castled" if last.castled else ""
        sentences.append(f"{ends}{castled}.")
    return " ".join(sentences)


def describe_occupancy(trajectories: Sequence[Trajectory]) -> str:
    """How far the masks opened, and since when they are empty."""
    num_steps = max(len(trajectory.steps) for trajectory in trajectories)
    fullest = max(trajectories, key=lambda trajectory: max(trajectory.high))
    peak = max(fullest.high)
    if not peak:
        return f"The branch never opened: every mask was empty at each of the {num_steps:,} logged steps."
    num_opened = sum(max(trajectory.high) > 0 for trajectory in trajectories)
    opened = (
        f"Entries that survive the mask, mean of the heads and their range. The branch opened in {num_opened} of "
        f"{len(trajectories)} layers, most in layer {layer_label(fullest.layer)}: {percent(peak)} in its fullest head "
        f"at step {fullest.steps[fullest.high.index(peak)]:,}."
    )
    last = max(step for each in trajectories for step, high in zip(each.steps, each.high, strict=True) if high > 0)
    later = [step for each in trajectories for step in each.steps if step > last]
    if later:
        return f"{opened} From step {min(later):,} on every logged mask is empty, and the branch adds nothing."
    latest = percent(max(trajectory.high[-1] for trajectory in trajectories))
    return f"{opened} At the last logged step the fullest head still keeps {latest}."


def describe_loss(run: RunData) -> str:
    """How the loss of the first run went."""
    losses = [(record.step, or_nan(record.loss)) for record in run.steps]
    finite = [(step, loss) for step, loss in losses if math.isfinite(loss)]
    if not finite:
        return "No finite loss was logged."
    tail = [loss for _, loss in finite[-max(1, len(finite) // 20) :]]
    sentence = (
        f"Training loss: each logged step in light colour, the running mean over it. It begins at {finite[0][1]:.3g} "
        f"and ends at {sum(tail) / len(tail):.3g} after {finite[-1][0]:,} steps."
    )
    skipped = max((record.skipped for record in run.steps), default=0)
    return f"{sentence} {skipped} steps were skipped because they were not finite." if skipped else sentence


def describe_cost(run: RunData) -> str:
    """The largest size that was measured, castled against softmax."""
    row = (run.speed or {})["rows"][-1]
    tokens = num_tokens_at(run, row["size"])
    macs, milliseconds = (row[key][SOFTMAX] / row[key][CASTLED] for key in ("macs", "milliseconds"))
    faster = f"{milliseconds:.1f}x faster" if milliseconds >= 1 else f"{1 / milliseconds:.1f}x slower"
    return (
        f"The castled model beside the same network with fused softmax attention, one image at a time, taking turns. "
        f"At {row['size']} px{f' ({tokens:,} tokens)' if tokens else ''} it needs {macs:.1f}x fewer MACs and is "
        f"{faster}. The numbers at the points are softmax over castled."
    )
