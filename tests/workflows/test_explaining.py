"""What a network attends to and what decided: for every task, against gradients and places whose answer is known."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import castling
from castling.report.explanation import Explanation, LayerRow, overlaid
from castling.training import load_recipe
from castling.training.saved import SavedModel, open_model
from castling.workflows.explaining import seen_picture

VIT = "model.options={img_size: 32, patch_size: 8, embed_dim: 16, depth: 2, num_heads: 2}"
TASKS = {
    "classification": ("digits/castling", [VIT], {"labels": ["a", "b"]}),
    "detection": (
        "facemask/castling_s_320",
        ["data.image_size=64", "data.sizes=[]"],
        {"labels": ["a", "b"], "category_ids": [0, 1]},
    ),
    "segmentation": (
        "camvid/castling_vit_tiny",
        ["model.options.depth=4", "data.image_size=64"],
        {"labels": ["a", "b"], "palette": None},
    ),
    "pretraining": ("pretraining/digits", ["model.options.depth=1"], {}),
}


def untrained(kind, *overrides):
    name, settings, facts = TASKS[kind]
    recipe = load_recipe(name, [*settings, *overrides])
    task = recipe.make_task(facts)
    return SavedModel(task.build_network().eval(), recipe, task)


def picture(width=64, height=64):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8))


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_is_explained(kind, tmp_path):
    saved = untrained(kind)
    found = castling.explain(saved, picture(), at=(0.9, 0.1))
    assert found.relevance.shape == found.view.size[::-1]
    assert np.isfinite(found.relevance).all()
    assert np.abs(found.relevance).max() > 0
    assert found.rows
    for row in found.rows:
        assert row.row.shape == row.softmax.shape
        total = row.softmax.sum((1, 2)) if not row.prefix.size else None
        assert total is None or np.allclose(total, 1, atol=1e-5)
    assert not any(parameter.grad is not None for parameter in saved.network.parameters())
    files = found.save(tmp_path / "explained")
    assert [file.name for file in files] == ["attention.png", "relevance.png", "explanation.npz", "explanation.json"]
    assert json.loads(files[3].read_text())["layers"][0]["grid"] == list(found.rows[0].row.shape[1:])
    with np.load(files[2]) as arrays:
        np.testing.assert_array_equal(arrays[f"{found.rows[0].layer}.row"], found.rows[0].row)


def test_relevance_is_what_is_lost_without_the_values_of_a_place():
    saved = untrained("classification")
    image = picture().convert("L")
    found = castling.explain(saved, image)
    saved.network.double()
    images = saved.task.predictor(saved.network).prepare(image)[None].double()
    assert found.evidence == pytest.approx(float(saved.network(images).amax()))
    row, column, share = 1, 2, 1e-4

    def with_less(mix):
        def mixed(q, k, v, *others, **more):
            v = v.clone()
            v[:, 1 + 4 * row + column] *= 1 - share
            return mix(q, k, v, *others, **more)

        return mixed

    for block in saved.network.blocks:
        block.attn.mix = with_less(block.attn.mix)
    lost = (found.evidence - float(saved.network(images).amax())) / share
    patch = found.relevance[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
    assert patch.sum() == pytest.approx(lost, rel=1e-2)


def test_a_place_is_a_share_of_the_picture():
    found = castling.explain(untrained("classification"), picture(), at=(1, 0.3))
    assert (found.view.size, found.at) == ((32, 32), (31, 9))
    own = found.rows[0].row.argmax(axis=-1)[:, 1]  # of the second row of patches
    assert own.tolist() == [3, 3]
    other = castling.explain(untrained("classification"), picture(), at=(1, 0.3), size=64)
    assert (other.view.size, other.rows[0].row.shape) == ((64, 64), (2, 8, 8))


def test_one_layer_of_a_trained_run_and_its_picture(digits_run):
    saved = open_model(digits_run / "castled")
    found = castling.explain(digits_run / "castled", picture(), layers=["blocks.0.attn"])
    assert [row.layer for row in found.rows] == ["blocks.0.attn"]
    assert found.said.startswith("0: ")
    image = torch.zeros(1, 32, 32)
    assert seen_picture((image - 0.305) / 0.376, saved.task).getextrema()[0][0] <= 1


def test_what_cannot_be_explained_is_said(digits_run, tmp_path):
    saved = untrained("classification")
    for at in ((1.1, 0.5), (0.5, -0.1), (float("nan"), 0)):
        with pytest.raises(ValueError, match="from 0 to 1; got"):
            castling.explain(saved, picture(), at=at)
    with pytest.raises(ValueError, match=r"no attention 'blocks.7.attn'.*there are blocks.0.attn, blocks.1.attn"):
        castling.explain(saved, picture(), layers=["blocks.7.attn"])
    with pytest.raises(ValueError, match="no attention in this network"):
        castling.explain(SavedModel(torch.nn.Flatten(), saved.recipe, saved.task), picture())
    with pytest.raises(ValueError, match="no picture or folder"):
        castling.explain(saved, "missing.png")


def test_colours_say_for_and_against():
    found = overlaid(Image.new("RGB", (4, 2), "black"), np.array([[1.0, -1.0]]))
    left, right = (found.getpixel((x, 0)) for x in (0, 3))
    assert left[0] > left[2]
    assert right[2] > right[0]
    assert overlaid(Image.new("RGB", (2, 2), "white"), np.zeros((1, 1))).getpixel((0, 0)) == (255, 255, 255)


def test_pages_have_a_picture_for_each_attention():
    rows = [LayerRow(str(n), "linear_angular", np.eye(4)[None], np.zeros((1, 0)), np.eye(4)[None]) for n in range(3)]
    found = Explanation("a", Image.new("RGB", (40, 20)), (0, 0), rows, np.zeros((20, 40)), 0.0, "a: 1")
    assert found.draw_attention().width > 4 * 192
    assert found.draw_relevance().size == (400, 200)
    assert found.draw_row(0, softmax=True, head=0).size == (40, 20)
