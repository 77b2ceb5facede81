import math

import pytest
import timm
import torch
from tiny_detector import SIZE, Backbone, all_points, level_sizes, tiny_detector, with_some_scores

from castling.exporting.capture import capture
from castling.measure import count_macs, count_parameters
from castling.tasks.detection.model import Detector, DetectorConfig

CHANNELS = {"S": (96, 192, 384), "M": (192, 384, 768), "L": (256, 512, 1024)}  # of LCNet-ViT
WIDTHS = {"S": (96, 2), "M": (128, 4), "L": (160, 4)}
CELLS = {320: (1600, 400, 100, 25), 416: (2704, 676, 169, 49)}
SIZES = [(1, 64, 64), (3, 96, 64), (1, 416, 416), (2, 64, 416)]


def layer_sizes(neck, head, size, num_classes=80):
    """Weights of convolutions, each with the number of cells that it is computed for, as ARCHITECTURES 5.1 has them."""
    c, convs = WIDTHS[size]
    fine, middle, coarse, top = "fine", "middle", "coarse", "top"
    light = 25 * 2 * c + 2 * c * 2 * c + 25 * 2 * c + 2 * c * c
    csp = 2 * (2 * c * c // 2) + (c // 2) ** 2 + 25 * c // 2 + (c // 2) ** 2 + c * c
    node = {"lcpan": light, "csppan": csp}[neck]
    separable = 25 * c + c * c
    layers = [(width * c, level) for width, level in zip(CHANNELS[size], (fine, middle, coarse), strict=True)]
    layers += [(node, level) for level in (middle, fine, middle, coarse)]
    layers += [(separable, level) for level in (middle, coarse, top, top)]
    for level in (fine, middle, coarse, top):
        layers.append((convs * separable, level))
        if head == "v2":
            layers += [(c * c, "one"), (c * c + num_classes * c + 32 * c + 25 * c + 1, level)]
        else:
            layers.append(((num_classes + 32) * c, level))
    return layers


def unfilled_detector(neck, head, size):
    width, convs = WIDTHS[size]
    config = DetectorConfig(neck=neck, neck_dim=width, head=head, head_convs=convs)
    with torch.device("meta"):
        return Detector(Backbone(CHANNELS[size]), config, num_classes=80)


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("head", ["v2", "v1"])
@pytest.mark.parametrize("neck", ["lcpan", "csppan"])
def test_weights_of_neck_and_head_are_those_of_the_formulas(neck, head, size):
    detector = unfilled_detector(neck, head, size)
    weights = count_parameters(detector, "weights") - count_parameters(detector.backbone, "weights")
    assert weights == sum(weight for weight, _ in layer_sizes(neck, head, size))


@pytest.mark.parametrize(
    ("neck", "head", "size", "side"), [("lcpan", "v2", "S", 320), ("csppan", "v2", "L", 416), ("lcpan", "v1", "M", 416)]
)
def test_macs_of_neck_and_head_are_those_of_the_formulas(neck, head, size, side):
    cells = dict(zip(("fine", "middle", "coarse", "top", "one"), (*CELLS[side], 1), strict=True))
    images = torch.zeros(1, 3, side, side, device="meta")
    macs = count_macs(unfilled_detector(neck, head, size), images).by_module
    wanted = sum(weight * cells[level] for weight, level in layer_sizes(neck, head, size))
    assert macs["neck"] + macs["head"] == wanted


def test_the_papers_missing_weights_are_the_excitation_and_the_top_level():
    detector = unfilled_detector("lcpan", "v2", "S")
    parts = [detector.neck.top_of_input, detector.neck.top_of_output, *(x.excite for x in detector.head.levels)]
    assert sum(count_parameters(part, "weights") for part in parts) == 6 * 96**2 + 50 * 96


@pytest.mark.parametrize(("height", "width"), [(416, 416), (32, 32), (96, 352)])
def test_every_point_has_scores_and_a_box_around_it(height, width):
    detector = tiny_detector().eval()
    outputs = detector(torch.randn(2, 3, height, width))
    points, strides = all_points(height, width)
    assert outputs["scores"].shape == (2, len(points), 3)
    x0, y0, x1, y1 = outputs["boxes"].unbind(-1)
    x, y = points.unbind(-1)
    assert ((x0 <= x) & (x <= x1) & (y0 <= y) & (y <= y1)).all()
    assert (torch.maximum(x1 - x0, y1 - y0) <= 14 * strides + 1e-3).all()
    assert len(points) == sum(rows * columns for rows, columns in level_sizes(height, width))


def test_what_only_losses_need_is_given_in_training_alone():
    detector = tiny_detector()
    assert set(detector(torch.randn(2, 3, *SIZE))) == {"scores", "boxes", "distributions", "points", "strides"}
    assert set(detector.eval()(torch.randn(2, 3, *SIZE))) == {"scores", "boxes"}


@pytest.mark.parametrize(("head", "score"), [("v2", math.sqrt(0.01 * 0.5)), ("v1", 0.01)])
def test_an_untrained_detector_sees_little(head, score):
    scores = tiny_detector(head=head).eval()(torch.randn(2, 3, *SIZE))["scores"]
    torch.testing.assert_close(scores.mean(), torch.tensor(score), rtol=0.05, atol=0)


def test_a_score_is_the_geometric_mean_of_class_and_alignment():
    detector = with_some_scores(tiny_detector())
    level, x = detector.head.levels[1], torch.randn(2, 8, 6, 4)
    seen = {}
    for name in ("classes", "align", "tower", "mix"):
        getattr(level, name).register_forward_hook(
            lambda _, given, out, name=name: seen.update({name: (given[0], out)})
        )
    scores, _ = level(x)
    tower = seen["tower"][1]
    assert seen["align"][0] is tower  # and not what was excited
    excited = tower * level.excite(tower.mean((2, 3), keepdim=True)).sigmoid()
    torch.testing.assert_close(seen["mix"][0], excited)
    wanted = (seen["classes"][1].sigmoid() * seen["align"][1].sigmoid()).sqrt()
    torch.testing.assert_close(scores, wanted, rtol=1e-4, atol=1e-4)


def test_outputs_are_float32_under_autocast():
    detector = tiny_detector()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = detector(torch.randn(2, 3, *SIZE))
    assert {x.dtype for x in outputs.values()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"neck": "lcpan", "head": "v2"}, {"neck": "csppan", "head": "v1"}])
def test_one_graph_is_right_at_every_size(options):
    detector = with_some_scores(tiny_detector(**options))
    captured = capture(detector, torch.zeros(1, 3, 64, 64))
    assert captured.dynamic == ("batch", "height", "width")
    run = captured.program.module()
    for batch, height, width in SIZES:
        images = torch.randn(batch, 3, height, width)
        torch.testing.assert_close(run(images), detector(images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_detector_compiles_into_one_graph(fresh_compiler):
    detector, images = tiny_detector(), torch.randn(3, 3, 96, 416)  # in training, where it gives most
    compiled = torch.compile(detector, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), detector(images), rtol=1e-4, atol=1e-4)


def test_a_backbone_of_timm_fits_as_it_is_and_traced():
    detectors = []
    for feature_cls in (None, "fx"):
        options = {} if feature_cls is None else {"feature_cls": feature_cls}
        backbone = timm.create_model("test_resnet", features_only=True, out_indices=(2, 3, 4), **options)
        detectors.append(Detector(backbone, DetectorConfig(neck_dim=8), num_classes=2).eval())
    for detector in detectors:
        assert detector(torch.randn(1, 3, *SIZE))["scores"].shape == (1, 128, 2)


def test_a_backbone_of_other_strides_is_refused():
    backbone = timm.create_model("test_resnet", features_only=True, out_indices=(1, 2, 3))
    with pytest.raises(ValueError, match=r"strides \(8, 16, 32\); got \(4, 8, 16\)"):
        Detector(backbone, DetectorConfig(), num_classes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neck": "fpn"}, "unknown neck 'fpn'"),
        ({"head": "v3"}, "unknown head 'v3'"),
        ({"kernel_size": 4}, "kernel_size must be odd"),
        ({"neck_dim": 97}, "neck_dim must be even and positive.*97"),
        ({"head_convs": -1}, "head_convs must be at least 0; got -1"),
        ({"reg_max": 0}, "reg_max must be at least 1; got 0"),
    ],
)
def test_a_bad_setting_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        DetectorConfig(**options)


def test_a_detector_needs_a_class():
    with pytest.raises(ValueError, match="num_classes must be at least 1; got 0"):
        tiny_detector(num_classes=0)
