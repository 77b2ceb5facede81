import pytest
import timm
import torch

from castling import AttentionConfig
from castling.conversion import mask_advice

OPTIONS = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


def deit(size, **attention):
    config = AttentionConfig(**attention)
    return timm.create_model("castling_deit_tiny_patch16_224", img_size=size, attention=config, **OPTIONS)


def test_enough_tokens_need_no_advice():
    assert mask_advice(deit(32), torch.zeros(1, 3, 32, 32)) == []


def test_too_few_tokens_are_said_with_the_nearest_setting():
    [sentence] = mask_advice(deit(24), torch.zeros(1, 3, 24, 24))
    assert "2 attentions see 37 keys" in sentence
    assert "threshold of 0.0271" in sentence
    for threshold, expected in ((0.0271, 0), (0.027, 1)):
        model = deit(24, threshold=threshold)
        assert len(mask_advice(model, torch.zeros(1, 3, 24, 24))) == expected


@pytest.mark.parametrize(("last", "expected"), [(1.0, 0), (0.021, 1)])
def test_where_a_schedule_ends_decides(last, expected):
    assert len(mask_advice(deit(24), torch.zeros(1, 3, 24, 24), last)) == expected


def test_relative_thresholds_count_in_units_of_one_over_n():
    example = torch.zeros(1, 3, 24, 24)
    assert mask_advice(deit(24, threshold=1.0, threshold_relative=True), example) == []
    [sentence] = mask_advice(deit(24, threshold=0.5, threshold_relative=True), example)
    assert "a relative threshold of 0.5" in sentence


def test_the_late_stages_of_levit_are_named():
    model = timm.create_model("castling_levit_128", num_classes=10)
    sentences = mask_advice(model, torch.zeros(1, 3, 224, 224))
    assert ["49 keys" in sentence or "16 keys" in sentence for sentence in sentences] == [True, True]
    assert model.training


def test_every_part_is_left_in_its_mode_and_a_failure_changes_none():
    model = deit(24)
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    mask_advice(model, torch.zeros(1, 3, 24, 24))
    assert [module.training for module in model.modules()] == before
    with pytest.raises(ValueError, match="does not fit patches"):
        mask_advice(model, torch.zeros(1, 3, 25, 25))
    assert [module.training for module in model.modules()] == before
