"""What a report shows of a segmenter: classes, what they are taken for, and pictures beside the truth."""

import numpy as np
import pytest
import torch
from mask_pictures import CLASSES, write_masks

from castling.tasks.segmentation.data import SegmentationData
from castling.tasks.segmentation.drawing import make_palette
from castling.tasks.segmentation.examine import SHOWN, confusion_table, examine
from castling.tasks.segmentation.metrics import Judged, MeanIoU
from castling.tasks.segmentation.sources import open_split


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = write_masks(tmp_path_factory.mktemp("masks") / "data", num_train=2, num_val=9, size=(48, 40))
    return open_split(SegmentationData(str(root)), "val")


def judged(source, wrong=()):
    """All pictures seen as they are, but for those that are all ground."""
    for index in range(len(source)):
        truth = torch.as_tensor(source.read(index)[1].astype(np.int64))
        found = torch.where(truth == 255, 0, truth)
        yield Judged(index, truth, torch.zeros_like(found) if index in wrong else found)


def test_classes_and_confusion_are_those_of_the_metric(source):
    bars, table, *_ = examine(judged(source, wrong=(2, 5)), source, CLASSES)
    meter = MeanIoU(CLASSES)
    for picture in judged(source, wrong=(2, 5)):
        counted = picture.truth != 255
        for true, seen in zip(picture.truth[counted], picture.found[counted], strict=True):
            meter.counts[true, seen] += 1
    values = {metric.name: metric.value for metric in meter.result()}
    assert bars.values == {label: pytest.approx(values[f"iou_of_{label}"]) for label in bars.values}
    assert list(bars.values.values()) == sorted(bars.values.values(), reverse=True)
    assert (list(table.rows), list(table.columns)) == (list(CLASSES), list(CLASSES))
    assert np.allclose(table.values, meter.counts / meter.counts.sum(1, keepdim=True))


def test_galleries_show_some_pictures_and_the_worst_first(source):
    *_, some, worst = examine(judged(source, wrong=(3, 7)), source, CLASSES)
    assert (some.name, worst.name) == ("examples", "worst")
    assert len(some.pictures) == len(worst.pictures) == SHOWN
    assert {words.split(":")[0] for _, words in worst.pictures[:2]} == {"images/val/003.png", "images/val/007.png"}
    assert worst.pictures[-1][1].endswith("mean IoU 100.0 %")
    assert some.pictures[0][1].split(":")[0] == "images/val/000.png"


def test_the_truth_is_on_the_left_and_what_was_seen_on_the_right(source):
    *_, worst = examine(judged(source, wrong=(3,)), source, CLASSES)
    pixels = np.asarray(worst.pictures[0][0], float)[:300]  # without the legend
    ground = np.array(make_palette(3)[0])

    def far_from_ground(part):
        """Pixels that are not a mix of grey and the colour of the ground."""
        return (np.abs(part - (0.6 * ground + 0.4 * 110)).max(2) > 60).mean()

    assert far_from_ground(pixels[:, :360]) > 0.02
    assert pixels.shape[1] == 2 * 360 + 4


def test_of_many_classes_the_most_frequent_are_shown():
    counts = np.diag(np.arange(60))
    table = confusion_table(counts, [f"class {number}" for number in range(60)])
    assert len(table.rows) == 40
    assert table.rows[0] == "class 20"
    assert "The 40 most frequent of 60 classes." in table.caption


def test_a_class_that_is_not_there_has_an_empty_row():
    assert np.isnan(confusion_table(np.array([[2, 0], [0, 0]]), ["a", "b"]).values[1]).all()


def test_pictures_without_a_label_are_passed_over_and_nothing_is_an_error(source):
    blank = Judged(0, torch.full((40, 48), 255), torch.zeros(40, 48, dtype=torch.int64))
    *_, some, _ = examine([blank, *judged(source)], source, CLASSES)
    assert len(some.pictures) == SHOWN
    with pytest.raises(ValueError, match="no readable picture with a labelled pixel"):
        examine([blank], source, CLASSES)
