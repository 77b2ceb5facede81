"""A run as a folder for other people: transformers and timm load it, and a card says what it is and what it reached.

The folder is whole or not there. Uploading it to Hugging Face is a step of its own, which nobody takes unasked.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save
from torch import nn

from castling.attention import branches
from castling.conversion import Certificate, is_castled
from castling.extras import import_extra
from castling.measure.macs import count_macs, count_parameters
from castling.measure.plain_json import read_object
from castling.report.model_card import Card, write_card
from castling.report.run_data import read_run
from castling.report.run_figures import draw_run
from castling.tasks.networks import NetworkConfig
from castling.training.recipe import recipe_values
from castling.training.run_folder import write_file
from castling.training.saved import CASTLED, CERTIFICATE, WEIGHTS, SavedModel, Which, open_model
from castling.workflows.exporting import without_places

CONFIG, PROCESSOR, CARD = "config.json", "preprocessor_config.json", "README.md"


@dataclass(frozen=True)
class Published:
    """What was written.

    Args:
        folder: the folder.
        files: its files.
        architecture: the class of transformers that loads it.
        timm: whether timm loads it too.
        num_bytes: the size of all files.
    """

    folder: Path
    files: list[str]
    architecture: str
    timm: bool
    num_bytes: int


def publish(
    run: Path | str,
    to: Path | str,
    licence: str = "apache-2.0",
    checkpoint: Which | None = None,
    with_branch: bool = False,
) -> Published:
    """Write a run as a folder that transformers loads, and timm where it is a classifier of its registry.

    Args:
        run: a run folder, whose castled network is taken where there is one, or the castled folder itself.
        to: the folder to write, which must not be there yet or be one that was published before.
        licence: the licence of the weights, as Hugging Face names it.
        checkpoint: which weights of a run.
        with_branch: publish a network that was not castled.

    Raises:
        ValueError: for a run that is not castled (unless asked for), a task that transformers has no model of, or a
            folder with something else in it.
        ImportError: if transformers is missing; names the extra.

    Example:
        >>> publish("runs/digits", "published/digits").files  # doctest: +SKIP
        ['README.md', 'certificate.json', 'config.json', 'model.safetensors', 'preprocessor_config.json']
    """
    import_extra("transformers", "huggingface")
    from castling.hub.models import MODELS  # imports transformers

    run, to = Path(run), Path(to)
    if (run / CASTLED).is_dir() and not with_branch and checkpoint is None:
        run = run / CASTLED
    saved = open_model(run, checkpoint)
    if branches(saved.network) and not with_branch:
        raise ValueError(
            f"{run} is not castled; run first: castling castle {shlex.quote(str(run))}, or use --with-branch"
        )
    if saved.recipe.task not in MODELS:
        raise ValueError(f"transformers has models for {', '.join(MODELS)}; {run} is of the task {saved.recipe.task!r}")
    if to.exists() and not _was_published(to) and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"{to} is there already and was not published by this command; name another folder")
    timms = timm_entry(saved)
    figures = _figures(run.parent if run.name == CASTLED else run)
    content = _files(run, saved, MODELS[saved.recipe.task], timms, licence, to.name, figures)
    to.parent.mkdir(parents=True, exist_ok=True)
    whole = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        for name, data in content.items():
            (whole / name).parent.mkdir(exist_ok=True)
            write_file(whole / name, data)
        if to.exists():
            shutil.rmtree(to)
        whole.rename(to)
    finally:
        shutil.rmtree(whole, ignore_errors=True)
    size = sum(len(data) for data in content.values())
    return Published(to, sorted(content), MODELS[saved.recipe.task].__name__, bool(timms), size)


def upload(folder: Path | str, repository: str) -> str:
    """Send a published folder to Hugging Face, as the person whose token is here; returns its address.

    Raises:
        ValueError: if there is no token.
        ImportError: if huggingface_hub is missing; names the extra.
    """
    hub = import_extra("huggingface_hub", "huggingface")
    if hub.get_token() is None:
        raise ValueError("there is no token of Hugging Face here: log in with 'hf auth login', or publish to a folder")
    hub.create_repo(repository, exist_ok=True)
    found = hub.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="castling publish")
    return str(found)


def _was_published(folder: Path) -> bool:
    """Whether a folder holds a network of ours: others have a `config.json` as well, and are not to be replaced."""
    try:
        return read_object(folder / CONFIG).get("model_type") == "castling"
    except (OSError, ValueError):
        return False


def timm_entry(saved: SavedModel) -> dict[str, Any]:
    """What timm needs in `config.json` to make the network by itself; empty for one that it does not make.

    Timm makes classifiers of its registry, ours included. One that was converted is not what its name says.
    """
    model: NetworkConfig = saved.recipe.settings.model
    plain = saved.recipe.task == "classification" and model.convert is None and timm.is_model(model.name)
    if not plain or model.input_size is not None:
        return {}
    data = saved.recipe.settings.data
    network: Any = saved.network
    ours: dict[str, Any] = {"kernel": model.kernel}
    for name in ("attention", "design"):
        options = getattr(model, name)
        if options is not None or (is_castled(network) and name == _options_of(model.name)):
            ours[name] = _without_branch(asdict(options) if options is not None else {}, name, is_castled(network))
    given = {name: value for name, value in ours.items() if value is not None}
    labels = saved.task.facts["labels"]
    cfg = {
        "input_size": [data.channels, data.image_size, data.image_size],
        "mean": list(data.mean),
        "std": list(data.std),
        "interpolation": data.interpolation,
        "crop_pct": data.crop_share,
        "num_classes": len(labels),
        "label_names": labels,
        "first_conv": network.pretrained_cfg.get("first_conv"),
        "classifier": network.pretrained_cfg.get("classifier"),
    }
    return {
        "architecture": model.name,
        "num_classes": len(labels),
        "num_features": network.num_features,
        "model_args": {"in_chans": data.channels, **given, **model.options},
        "pretrained_cfg": cfg,
    }


def _options_of(name: str) -> str | None:
    """The argument with which a network of ours is told of its attention."""
    if not name.startswith("castling_"):
        return None
    return "design" if name.startswith("castling_levit") else "attention"


def _without_branch(options: dict[str, Any], name: str, castled: bool) -> dict[str, Any]:
    if not castled:
        return options
    if name == "design":
        return {**options, "attention": {**options.get("attention", {}), "aux": False}}
    return {**options, "aux": False}


def _figures(run: Path) -> dict[str, tuple[str, bytes]]:
    """Figures of the training with their captions, by name; none where its folder, or matplotlib, is not here."""
    with tempfile.TemporaryDirectory() as place:
        try:
            drawn = draw_run([read_run(run)], Path(place))
        except (ImportError, OSError, ValueError):
            return {}
        return {f"figures/{one.path.name}": (one.caption, one.path.read_bytes()) for one in drawn}


def _files(
    run: Path,
    saved: SavedModel,
    model: Any,
    timms: Mapping[str, Any],
    licence: str,
    name: str,
    figures: Mapping[str, tuple[str, bytes]],
) -> dict[str, bytes]:
    """The folder's files by name."""
    from castling.hub.config import CastlingConfig
    from castling.hub.processor import CastlingImageProcessor

    recipe, facts = without_places(recipe_values(saved.recipe)), saved.task.facts
    castled = not branches(saved.network)
    config = CastlingConfig(recipe=recipe, facts=facts, castled=castled, **timms)
    config.architectures = [model.__name__]
    example = saved.task.deployment().example
    certificate = run / CERTIFICATE if castled and (run / CERTIFICATE).is_file() else None
    card = Card(
        name=name,
        licence=licence,
        task=saved.recipe.task,
        architecture=model.__name__,
        auto_class=model.auto_class,
        model=saved.recipe.settings.model.name,
        castled=castled,
        certificate=None if certificate is None else Certificate.from_json(read_object(certificate)),
        parameters=count_parameters(saved.network),
        macs=count_macs(saved.network, example).total,
        image_size=(example.shape[2], example.shape[3]),
        labels=facts.get("labels", []),
        recipe=recipe,
        timm=bool(timms),
        figures={file: caption for file, (caption, _) in figures.items()},
    )
    content = {
        CONFIG: config.to_json_string(use_diff=False).encode(),
        PROCESSOR: CastlingImageProcessor(recipe, facts).to_json_string().encode(),
        WEIGHTS: save(_weights(saved.network), {"format": "pt"}),
        CARD: write_card(card).encode(),
        **{file: data for file, (_, data) in figures.items()},
    }
    return content if certificate is None else {**content, CERTIFICATE: certificate.read_bytes()}


def _weights(network: nn.Module) -> dict[str, torch.Tensor]:
    """Weights under the network's own names, which timm looks for and transformers puts its prefix before."""
    return {name: value.contiguous() for name, value in network.state_dict().items()}
