import timm
import torch

import castling
from castling.attention import branches
from castling.measure.occupancy import last_occupancy, record_occupancy

OPTIONS = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


def test_names_and_heads_of_a_network():
    model = timm.create_model("castling_deit_tiny_patch16_224", **OPTIONS)
    assert list(branches(model)) == ["blocks.0.attn", "blocks.1.attn"]
    assert last_occupancy(model) == {}
    model(torch.randn(1, 3, 32, 32))
    assert {name: len(heads) for name, heads in last_occupancy(model).items()} == {
        "blocks.0.attn": 2,
        "blocks.1.attn": 2,
    }
    assert branches(castling.castle(model)) == {}


def test_the_record_is_the_mean_over_examples():
    attention = torch.nn.Sequential(castling.CastlingAttention(32, 2, config=castling.AttentionConfig(threshold=0.03)))
    with torch.no_grad():
        attention[0].qkv.weight.mul_(20)
    images = torch.randn(3, 50, 32)
    with record_occupancy(attention) as record:
        attention(images[:1])
        attention(images[1:])
    attention(images)
    torch.testing.assert_close(torch.tensor(record.mean()["0"]), attention[0].aux.occupancy)
    assert record.mean()["0"][0] > 0
    assert record.num_keys == {"0": 50}


def test_keys_are_counted_where_they_are_pooled():
    model = timm.create_model("castling_levit_128", num_classes=10).eval()
    with record_occupancy(model) as record:
        model(torch.randn(1, 3, 224, 224))
    assert sorted(set(record.num_keys.values())) == [16, 49, 196]
