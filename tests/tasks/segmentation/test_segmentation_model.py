import sys

import pytest
import torch
from tiny_segmenter import DECODERS, SIZE, tiny_config, tiny_segmenter, with_some_scores
from torch import nn

import castling
from castling.conversion.inspection import kept_attentions
from castling.exporting.capture import capture
from castling.exporting.larger_picture import telling_picture
from castling.exporting.write import export
from castling.measure import count_parameters
from castling.measure.quadratic import longest_sequence, quadratic_tensors
from castling.tasks.segmentation.fpn import FpnDecoder
from castling.tasks.segmentation.model import Segmenter, SegmenterConfig, semantic_scores

HEIGHT, WIDTH = (side // 4 for side in SIZE)


@pytest.mark.parametrize(("decoder", "pixel_decoder"), DECODERS)
def test_evaluation_gives_one_tensor_of_scores(decoder, pixel_decoder):
    segmenter = tiny_segmenter(decoder, pixel_decoder).eval()
    assert segmenter(torch.randn(2, 3, *SIZE)).shape == (2, 3, HEIGHT, WIDTH)
    if pixel_decoder != "deformable":  # whose norms are of one channel at this width, and want more than one cell
        assert segmenter(torch.randn(1, 3, 32, 32)).shape == (1, 3, 8, 8)


def test_training_gives_logits_of_the_light_decoder():
    segmenter = tiny_segmenter()
    images = torch.randn(2, 3, *SIZE)
    outputs = segmenter(images)
    assert set(outputs) == {"logits"}
    torch.testing.assert_close(outputs["logits"], segmenter.eval()(images))


@pytest.mark.parametrize("pixel_decoder", ["encoder_fpn", "deformable"])
def test_training_gives_the_predictions_of_all_layers_of_mask2former(pixel_decoder):
    segmenter = tiny_segmenter("mask2former", pixel_decoder)
    images = torch.randn(2, 3, *SIZE)
    outputs = segmenter(images)
    assert [tuple(x.shape) for x in outputs["class_logits"]] == [
        (2, 5, 4)
    ] * 4  # before the first layer, and after each
    assert [tuple(x.shape) for x in outputs["mask_logits"]] == [(2, 5, HEIGHT, WIDTH)] * 4
    wanted = torch.zeros(2, 3, HEIGHT, WIDTH)
    for query in range(5):
        classes = outputs["class_logits"][-1][:, query].softmax(-1)
        for one in range(3):
            wanted[:, one] += classes[:, one, None, None] * outputs["mask_logits"][-1][:, query].sigmoid()
    torch.testing.assert_close(segmenter.eval()(images), wanted, rtol=1e-4, atol=1e-5)


def test_scores_of_a_sure_query_are_its_mask():
    masks = torch.tensor([[[[50.0, -50.0]], [[-50.0, 50.0]]]])
    classes = torch.tensor([[[0.0, 50.0, 0.0], [0.0, 0.0, 50.0]]])  # the second query is none
    torch.testing.assert_close(semantic_scores(classes, masks), torch.tensor([[[[0.0, 0.0]], [[1.0, 0.0]]]]))


@pytest.mark.parametrize(("decoder", "pixel_decoder"), DECODERS)
def test_outputs_are_float32_under_autocast_and_all_weights_learn(decoder, pixel_decoder):
    segmenter = tiny_segmenter(decoder, pixel_decoder)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = segmenter(torch.randn(2, 3, *SIZE))
        scores = segmenter.eval()(torch.randn(1, 3, *SIZE))
    leaves = [x for found in outputs.values() for x in ([found] if isinstance(found, torch.Tensor) else found)]
    assert {x.dtype for x in (*leaves, scores)} == {torch.float32}
    sum(x.mul(torch.randn_like(x)).sum() for x in leaves).backward()
    assert [name for name, parameter in segmenter.named_parameters() if parameter.grad is None] == []


def test_the_light_decoder_is_a_sum_of_maps_that_grew():
    decoder = FpnDecoder((8, 8, 8), dim=4, num_classes=3)
    maps = [torch.randn(1, 8, 8 // 2**level, 12 // 2**level) for level in range(3)]

    def grown(x):
        return nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    (fine,), (middle,), (coarse, then) = decoder.levels
    total = fine(maps[0]) + grown(middle(maps[1])) + grown(then(grown(coarse(maps[2]))))
    torch.testing.assert_close(decoder(maps), decoder.classes(total))


def test_parameters_of_the_light_decoder():
    """Four levels of 1, 1, 2 and 3 convolutions, the first of each from the pyramid's width, and the classes."""
    decoder = FpnDecoder((256,) * 4, dim=64, num_classes=150)
    convs = 4 * 9 * 256 * 64 + 3 * 9 * 64 * 64
    assert count_parameters(decoder) == convs + 7 * 2 * 64 + 64 * 150 + 150


@pytest.mark.parametrize(("decoder", "pixel_decoder"), DECODERS)
def test_a_segmenter_can_be_castled_for_good_and_for_a_moment(decoder, pixel_decoder):
    segmenter = tiny_segmenter(decoder, pixel_decoder, vit={"attention": castling.AttentionConfig(threshold=0.0)})
    segmenter = with_some_scores(segmenter)
    images = torch.randn(1, 3, *SIZE)
    before = segmenter(images)
    castled = castling.castle(segmenter)
    assert castling.is_castled(castled)
    assert not castling.is_castled(segmenter)
    assert list(castled.state_dict()) == list(segmenter.state_dict())
    with castling.castled(segmenter):
        torch.testing.assert_close(segmenter(images), castled(images), rtol=0, atol=0)
    torch.testing.assert_close(segmenter(images), before, rtol=0, atol=0)
    assert not torch.equal(before, castled(images))


def test_with_the_light_decoder_the_whole_network_is_proved_linear():
    segmenter = castling.castle(tiny_segmenter()).eval()
    images = torch.randn(1, 3, 256, 256)
    assert longest_sequence(segmenter, images) == 256 + 1
    assert quadratic_tensors(lambda: segmenter(images), 256) == []
    assert kept_attentions(segmenter) == []


@pytest.mark.parametrize("pixel_decoder", ["encoder_fpn", "deformable"])
def test_attentions_of_mask2former_are_named_as_kept_and_the_rest_is_linear(pixel_decoder):
    segmenter = castling.castle(tiny_segmenter("mask2former", pixel_decoder, layers=1)).eval()
    kept = kept_attentions(segmenter)
    encoder = {"encoder_fpn": "encoder.0.attn", "deformable": "encoder.layers.0.self_attn"}[pixel_decoder]
    layer = "decoder.transformer.decoder.layers.0"
    assert {site.name for site in kept} == {
        f"decoder.pixel_decoder.{encoder}",
        f"{layer}.self_attn",
        f"{layer}.cross_attn",
    }
    images = torch.randn(1, 3, 256, 256)
    assert quadratic_tensors(lambda: segmenter(images), 256, [site.module for site in kept]) == []


@pytest.mark.parametrize("pixel_decoder", ["encoder_fpn", "deformable"])
def test_neither_queries_nor_tokens_of_all_scales_hide_the_maps_of_the_backbone(pixel_decoder):
    """A proof looks for N x N, where N are the tokens of the backbone."""
    segmenter = tiny_segmenter("mask2former", pixel_decoder, queries=100, layers=1).eval()
    picture, num_tokens = telling_picture(segmenter, torch.zeros(1, 3, 64, 64))
    assert num_tokens == picture.shape[-1] ** 2 // 16**2
    kept = [site.module for site in kept_attentions(segmenter)]
    assert quadratic_tensors(lambda: segmenter(picture), num_tokens, kept)
    left = quadratic_tensors(lambda: castling.castle(segmenter)(picture), num_tokens)
    assert len(left) == (pixel_decoder == "encoder_fpn")  # its one fused softmax, among the tokens at stride 32


@pytest.mark.parametrize("decoder", ["fpn", "mask2former"])
def test_sides_that_32_does_not_divide_are_refused(decoder):
    with pytest.raises(ValueError, match="an image of 64 x 72 does not fit a stride of 32"):
        tiny_segmenter(decoder)(torch.zeros(1, 3, 64, 72))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "unet"}, "unknown decoder 'unet'"),
        ({"pixel_decoder": "fpn"}, "unknown pixel_decoder 'fpn'"),
        ({"queries": 0}, "queries must be at least 1; got 0"),
        ({"points": -1}, "points must be at least 1; got -1"),
        ({"ffn_dim": 1}, "ffn_dim must be at least 2; got 1"),
        ({"decoder": "mask2former", "dim": 48}, "dim must be a multiple of 32.*dim=48"),
        ({"decoder": "mask2former", "heads": 7}, "heads=7"),
    ],
)
def test_a_bad_setting_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        SegmenterConfig(**options)


def test_a_pyramid_of_another_width_or_no_class_is_refused():
    backbone = tiny_segmenter().backbone
    with pytest.raises(ValueError, match="maps have 8 channels, the configuration 16"):
        Segmenter(backbone, tiny_config(dim=16), 3)
    with pytest.raises(ValueError, match="num_classes must be at least 1; got 0"):
        Segmenter(backbone, tiny_config(), 0)


def test_without_transformers_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("transformers.models.mask2former")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "castling.tasks.segmentation.mask2former", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'transformers is missing.*"castling-vit\[segmentation\]"'):
        tiny_segmenter("mask2former")
    assert tiny_segmenter().eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3, 8, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("decoder", "pixel_decoder"), DECODERS[:2])
def test_one_graph_is_right_at_every_size(decoder, pixel_decoder):
    segmenter = castling.castle(with_some_scores(tiny_segmenter(decoder, pixel_decoder)))
    captured = capture(segmenter, torch.zeros(1, 3, 64, 64))
    assert captured.dynamic == ("batch", "height", "width")
    run = captured.program.module()
    for batch, height, width in [(1, 64, 64), (3, 96, 64), (1, 224, 224), (2, 64, 160)]:
        images = torch.randn(batch, 3, height, width)
        torch.testing.assert_close(run(images), segmenter(images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_light_segmenter_is_written_as_onnx_for_any_size_without_softmax(tmp_path):
    segmenter = castling.castle(with_some_scores(tiny_segmenter()))
    seen = export(segmenter, tmp_path / "segmenter.onnx", torch.zeros(1, 3, 64, 64))
    assert seen.dynamic == ("batch", "height", "width")
    assert (seen.num_softmax, seen.quadratic) == (0, ())


@pytest.mark.slow
def test_the_light_segmenter_compiles_into_one_graph(fresh_compiler):
    segmenter, images = tiny_segmenter().eval(), torch.randn(2, 3, *SIZE)
    compiled = torch.compile(segmenter, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), segmenter(images), rtol=1e-4, atol=1e-4)
