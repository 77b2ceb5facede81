import json

import pytest
import torch
from torch import nn

import castling
from castling.exporting import Metadata, describe_deployment, describe_network
from castling.exporting.metadata import parse_metadata
from castling.tasks.task import Deployment


def test_what_is_written_is_read_back():
    form = {"boxes": "boxes", "levels": ["p3", "p4"], "masks": None}
    metadata = Metadata(
        family="mine",
        image_size=(32, 48),
        channels=1,
        task="finding",
        preprocessing={"mean": (0.1,), "crop_share": 0.5},
        facts={"labels": ("chat", "größer"), "palette": {"chat": (255, 0, 0)}},
        outputs=("boxes", "p3", "p4"),
        form=form,
        dynamic=("batch",),
        side_step=8,
        castled=True,
    )
    assert parse_metadata(metadata.to_json()) == metadata
    assert metadata.facts == {"labels": ["chat", "größer"], "palette": {"chat": [255, 0, 0]}}
    assert metadata.castling == castling.__version__


def test_files_of_other_versions_are_read_as_far_as_known():
    older = parse_metadata(json.dumps({"family": "deit", "image_size": [32, 32], "mean": [0.5]}))
    assert (older.family, older.image_size, older.preprocessing, older.outputs) == ("deit", (32, 32), {}, ())
    content = json.loads(Metadata(family="deit").to_json())
    assert parse_metadata(json.dumps({**content, "later": 1})) == Metadata(family="deit")


def test_timm_knows_how_to_prepare_a_picture(deit):
    described = describe_network(deit, torch.zeros(1, 3, 32, 48))
    assert (described.family, described.image_size, described.channels) == ("deit", (32, 48), 3)
    assert described.preprocessing["mean"] == [0.485, 0.456, 0.406]
    assert (described.preprocessing["interpolation"], described.preprocessing["crop_share"]) == ("bicubic", 0.9)
    grey = describe_network(nn.Conv2d(1, 2, 3), torch.zeros(1, 1, 8, 8))
    assert (grey.family, grey.preprocessing["std"]) == ("Conv2d", [0.5])


def test_a_deployment_has_its_own_preprocessing_and_facts(deit):
    deployment = Deployment(torch.zeros(1, 3, 64, 32), {"scale": 255}, ("depth",), {"unit": "m"})
    described = describe_deployment(deit, deployment, "depth")
    assert (described.task, described.family, described.image_size) == ("depth", "deit", (64, 32))
    assert (described.preprocessing, described.facts, described.outputs) == ({"scale": 255}, {"unit": "m"}, ("depth",))
    assert describe_deployment(deit, Deployment(torch.zeros(1, 3, 64, 32))).outputs == ()


def test_values_that_json_does_not_hold_are_refused():
    with pytest.raises(TypeError, match="Tensor is not JSON serializable"):
        Metadata(facts={"anchors": torch.zeros(2)})
