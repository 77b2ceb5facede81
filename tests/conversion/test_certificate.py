"""The certificate on networks whose masks are empty, open, or were never open, and on what must not pass."""

import copy
import json

import pytest
import timm
import torch
from torch import nn

from castling import AttentionConfig
from castling.attention import branches
from castling.conversion import castle, certify, convert, set_blend
from castling.measure.metric import Metric
from castling.tasks.classification.judge import LabelJudge

OPTIONS = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
OPENED = [(0, {"blocks.0.attn": [0.0, 0.0]}), (10, {"blocks.0.attn": [0.2, 0.1], "blocks.1.attn": [0.0, 0.3]})]


def model_with(threshold, sharpness=1.0, **attention):
    config = AttentionConfig(threshold=threshold, **attention)
    model = timm.create_model("castling_deit_tiny_patch16_224", attention=config, **OPTIONS)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(sharpness)
            block.attn.proj.weight.mul_(sharpness)
        model.head.weight.mul_(sharpness)
    return model


def pair(model):
    return {"with branch": model, "castled": castle(model)}


def labelled_by(model):
    """Pictures with the labels that this network gives them."""
    images = torch.randn(128, 3, 32, 32)
    with torch.no_grad():
        return [{"image": images, "target": model.eval()(images).argmax(-1)}]


@pytest.fixture
def batches():
    return [
        {"image": torch.randn(16, 3, 32, 32), "target": torch.randint(0, 10, (16,))},
        {"image": torch.randn(3, 3, 32, 32), "target": torch.tensor([1, 2, 3])},
    ]


class TwoOutputs(nn.Module):
    """A network whose outputs are a dictionary; what its tokens pass through on the way may be anything."""

    def __init__(self, model, between=None):
        super().__init__()
        self.model, self.between = model, between

    def forward(self, images):
        tokens = self.model.forward_features(images)
        if self.between is not None:
            tokens = self.between(tokens)
        return {"mean": tokens.mean((1, 2)), "parts": [tokens[:, :1], tokens[:, 1:]]}


class OneSize(TwoOutputs):
    def forward(self, images):
        if images.shape[-1] != 32:
            raise ValueError(f"expected pictures of 32 x 32; got {tuple(images.shape)}")
        return super().forward(images)


class ErrorJudge:
    """Judges by the mean of an output, in shades; lower is better."""

    def __init__(self, direction=1.0):
        self.direction = direction

    def forward(self, network, batch):
        return network(batch["image"])

    def meter(self):
        return ErrorMeter(self.direction)

    def agreement(self, outputs, others, batch):
        return torch.full((len(batch["image"]),), 0.25)


class ErrorMeter:
    def __init__(self, direction):
        self.direction, self.values = direction, []

    def update(self, outputs, batch):
        self.values.append(self.direction * outputs["mean"])

    def result(self):
        return [Metric("error", float(torch.cat(self.values).mean()), "shades", higher_is_better=False)]


def test_an_empty_mask_that_was_open_once_is_free(batches):
    certificate = certify(pair(model_with(1.0, sharpness=30)), LabelJudge(), batches, history=OPENED)
    assert certificate.verdict == "free"
    assert certificate.allowed
    assert (certificate.lost, certificate.unit, certificate.num_examples) == (0, "points", 19)
    assert certificate.state_dict_equal
    assert certificate.quadratic_tensors == []
    before, after = certificate.networks["with branch"], certificate.networks["castled"]
    assert (before.agreement, before.largest_difference, before.median_difference) == (1, 0, 0)
    assert before.metrics == after.metrics
    assert after.macs < before.macs
    assert after.parameters == before.parameters


def test_the_whole_of_it_is_json(batches):
    certificate = certify(pair(model_with(0.9)), LabelJudge(), batches, history=OPENED)
    content = json.loads(json.dumps(certificate.to_json()))
    assert list(content["networks"]) == ["with branch", "castled"]
    assert Metric(**content["networks"]["castled"]["metrics"][0]) == certificate.networks["castled"].metrics[0]
    assert content["layers"][0]["history"] == [[0, [0.0, 0.0]], [10, [0.2, 0.1]]]
    assert content["sizes"] == {}


def test_a_mask_that_never_opened_is_unused_and_never_free(batches):
    certificate = certify(pair(model_with(0.9)), LabelJudge(), batches)
    assert certificate.verdict == "unused"
    assert certificate.allowed
    assert certificate.networks["with branch"].largest_difference == 0
    assert not any(layer.opened for layer in certificate.layers)
    assert any("never opened in 2 of 2 attentions" in line for line in certificate.advice)


def test_one_mask_that_opened_is_enough_to_be_free(batches):
    history = [(0, {"blocks.1.attn": [0.0, 0.001]})]
    certificate = certify(pair(model_with(0.9)), LabelJudge(), batches, history=history)
    assert certificate.verdict == "free"
    assert [layer.opened for layer in certificate.layers] == [False, True]
    assert any("never opened in 1 of 2 attentions (blocks.0.attn)" in line for line in certificate.advice)


def test_an_open_mask_is_cheap_or_not_by_the_tolerance():
    model = model_with(0.0, sharpness=30)
    labelled = labelled_by(model)
    certificate = certify(pair(model), LabelJudge(), labelled, tolerance=100)
    assert certificate.verdict == "cheap"
    assert certificate.allowed
    assert any("still open in blocks.0.attn, blocks.1.attn" in line for line in certificate.advice)
    before = certificate.networks["with branch"]
    assert before.metrics[0] == Metric("top1", 1.0)
    assert certificate.lost > 0
    assert before.largest_difference > before.median_difference > 0
    assert before.agreement == pytest.approx(1 - certificate.lost / 100)
    assert certificate.networks["castled"].agreement == 1
    assert all(layer.opened and min(layer.occupancy) > 0 for layer in certificate.layers)
    exactly = certify(pair(model), LabelJudge(), labelled, tolerance=certificate.lost)
    assert exactly.verdict == "cheap"
    refused = certify(pair(model), LabelJudge(), labelled, tolerance=certificate.lost / 2)
    assert refused.verdict == "not yet"
    assert not refused.allowed
    assert any("threshold that closes" in line for line in refused.advice)


def test_a_gain_is_cheap():
    model = model_with(0.0, sharpness=30)
    certificate = certify(pair(model), LabelJudge(), labelled_by(castle(model)), tolerance=0)
    assert certificate.lost < 0
    assert certificate.verdict == "cheap"


def test_a_softmax_that_hides_in_the_castled_network_is_not_yet(batches):
    """One attention of two keeps its map, though nothing else changes."""
    model = model_with(1.0)
    config = AttentionConfig(kernel="softmax", output_norm="none", threshold=1.0)
    kept = timm.create_model("castling_deit_tiny_patch16_224", attention=config, **OPTIONS)
    model.blocks[1].attn = kept.blocks[1].attn
    certificate = certify(pair(model), LabelJudge(), batches, tolerance=100, history=OPENED)
    assert certificate.networks["with branch"].largest_difference == 0
    assert certificate.quadratic_tensors
    assert certificate.verdict == "not yet"
    assert any("N x N" in line for line in certificate.advice)
    assert not any("Train on" in line for line in certificate.advice)


class Product(nn.Module):
    """What is no attention, and makes a matrix of all pairs of tokens."""

    def forward(self, tokens):
        return tokens + (tokens @ tokens.mT).mean(-1, keepdim=True)


def test_a_product_of_all_pairs_of_tokens_is_not_yet(batches):
    free, kept = (TwoOutputs(model_with(1.0), between) for between in (None, Product()))
    assert certify(pair(free), ErrorJudge(), batches, tolerance=100).verdict == "unused"
    certificate = certify(pair(kept), ErrorJudge(), batches, tolerance=100)
    assert certificate.verdict == "not yet"
    assert "bmm" in certificate.quadratic_tensors[0]


@pytest.mark.parametrize("key", ["head.bias", "pos_embed"])
def test_other_weights_are_not_yet(batches, key):
    model = model_with(0.9)
    castled = castle(model)
    with torch.no_grad():
        castled.get_parameter(key).view(-1)[-1] += 1e-6
    certificate = certify({"with branch": model, "castled": castled}, LabelJudge(), batches, tolerance=100)
    assert not certificate.state_dict_equal
    assert certificate.verdict == "not yet"
    assert any("other weights" in line for line in certificate.advice)


def test_outputs_that_are_no_numbers_are_not_yet(batches):
    """Both networks give the same NaN, and so the same metrics: nothing seems to be lost."""
    certificate = certify(pair(poisoned(model_with(0.9))), LabelJudge(), batches, tolerance=100)
    assert certificate.state_dict_equal
    assert certificate.networks["with branch"].largest_difference != 0
    assert certificate.verdict == "not yet"
    assert any("not finite" in line for line in certificate.advice)


def poisoned(model):
    """The same network, whose first class has an infinite weight: its outputs are infinite or none."""
    with torch.no_grad():
        model.head.weight[0] = torch.inf
    return model


def test_a_metric_that_is_no_number_is_not_yet(batches):
    model = TwoOutputs(model_with(0.0, sharpness=30))
    assert certify(pair(model), ErrorJudge(torch.nan), batches, tolerance=100).verdict == "not yet"


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_where_lower_is_better_a_rise_is_lost(batches, direction):
    certificate = certify(pair(TwoOutputs(model_with(0.0, sharpness=30))), ErrorJudge(direction), batches, tolerance=0)
    before, after = (certificate.networks[name].metrics[0].value for name in ("with branch", "castled"))
    assert before != after
    assert certificate.lost == pytest.approx(after - before)
    assert certificate.unit == "shades"
    assert certificate.verdict == ("not yet" if after > before else "cheap")


def test_outputs_are_trees_and_agreement_is_the_tasks(batches):
    model = TwoOutputs(model_with(0.0, sharpness=30))
    found = certify(pair(model), ErrorJudge(), batches, tolerance=100).networks["with branch"]
    assert found.agreement == 0.25
    with torch.no_grad():
        model.eval()
        outputs = [(model(batch["image"]), castle(model)(batch["image"])) for batch in batches]
    differences = [(mine["parts"][1] - theirs["parts"][1]).abs() for mine, theirs in outputs]
    assert found.largest_difference >= max(float(each.max()) for each in differences) > 0


def test_three_networks_are_compared_from_the_original_to_the_castled_one(batches):
    """What counts is what the castled network is worse by than the first; the weights are the second's."""
    original = timm.create_model("vit_tiny_patch16_224", **OPTIONS).eval()
    converted = convert(copy.deepcopy(original), AttentionConfig(aux=False))
    set_blend(converted, 1.0)
    networks = {"original": original, "converted": converted, "castled": castle(converted)}
    labelled = labelled_by(original)
    certificate = certify(networks, LabelJudge(), labelled, tolerance=100)
    first, second, last = certificate.networks.values()
    assert list(certificate.networks) == list(networks)
    assert first.metrics[0].value == 1
    assert certificate.lost == pytest.approx(100 * (1 - last.metrics[0].value))
    assert (second.largest_difference, second.agreement) == (0, 1)
    assert first.largest_difference > 0
    assert first.parameters < second.parameters == last.parameters
    assert certificate.state_dict_equal
    assert certificate.layers == []
    assert certificate.verdict == "cheap"
    refused = certify(networks, LabelJudge(), labelled, tolerance=certificate.lost / 2)
    assert refused.verdict == "not yet"
    assert refused.advice == [f"Castling now would cost {certificate.lost:.2f} points."]


def test_a_network_without_masks_is_free_not_unused(batches):
    converted = convert(timm.create_model("vit_tiny_patch16_224", **OPTIONS), AttentionConfig(aux=False))
    set_blend(converted, 1.0)
    certificate = certify({"converted": converted, "castled": castle(converted)}, LabelJudge(), batches)
    assert certificate.verdict == "free"


def test_a_network_of_one_size_is_not_proven(batches):
    """Its size of training is too small to tell a map from a weight."""
    certificate = certify(pair(OneSize(model_with(0.9))), ErrorJudge(), batches)
    assert certificate.quadratic_tensors is None
    assert certificate.verdict == "unused"
    assert any("takes no larger picture" in line for line in certificate.advice)


def test_history_is_kept_for_every_head(batches):
    first, second = certify(pair(model_with(0.9)), LabelJudge(), batches, history=OPENED).layers
    assert (first.peak, second.peak) == ([0.2, 0.1], [0.0, 0.3])
    assert first.history == [(0, [0.0, 0.0]), (10, [0.2, 0.1])]
    assert second.history == [(10, [0.0, 0.3])]
    assert (first.occupancy, second.occupancy) == ([0.0, 0.0], [0.0, 0.0])
    assert first.opened
    assert second.opened


def test_whether_the_mask_could_empty_is_per_layer(batches):
    certificate = certify(pair(model_with(0.01)), LabelJudge(), batches, tolerance=100)
    assert [layer.can_empty for layer in certificate.layers] == [False, False]
    assert [layer.num_tokens for layer in certificate.layers] == [65, 65]
    assert any("cannot become empty" in line for line in certificate.advice)


def test_the_networks_stay_as_they_are(batches):
    model = model_with(0.02).train()
    model.blocks[0].eval()
    networks = pair(model)
    networks["castled"].eval()
    modes = [[module.training for module in network.modules()] for network in networks.values()]
    certify(networks, LabelJudge(), batches)
    assert [[module.training for module in network.modules()] for network in networks.values()] == modes
    assert len(branches(model)) == 2
    assert model.pos_embed.shape[1] == 65
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "options"),
    [("castling_levit_128", {"depth": (1, 1, 1)}), ("castling_mvitv2_tiny", {"depths": (1, 1, 1, 1)})],
)
def test_other_families(name, options):
    model = timm.create_model(name, num_classes=10, **options)
    batch = {"image": torch.randn(2, 3, 64, 64), "target": torch.tensor([0, 1])}
    certificate = certify(pair(model), LabelJudge(), [batch], tolerance=100)
    assert certificate.quadratic_tensors == []
    assert len(certificate.layers) == len(branches(model)) >= 4


@pytest.mark.parametrize("names", [[], ["castled"], ["castled", "with branch"]])
def test_the_last_of_several_networks_must_be_castled(batches, names):
    model = model_with(0.02)
    networks = pair(model)
    with pytest.raises(ValueError, match=f"the last of them castled; got {', '.join(names) or 'none'}"):
        certify({name: networks[name] for name in names}, LabelJudge(), batches)


def test_refusals(batches):
    with pytest.raises(ValueError, match="tolerance must be at least 0; got -1"):
        certify(pair(model_with(0.02)), LabelJudge(), batches, tolerance=-1)
    with pytest.raises(ValueError, match="no readable picture"):
        certify(pair(model_with(0.02)), LabelJudge(), [])
