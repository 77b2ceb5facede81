"""Tensors that lie one behind the other are stacked by a look at them; all others as torch does it."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from castling.tasks.stacking import Places, collated, stacked


def examples(images):
    places = Places(len(images))
    return [{"image": places.put(image), "target": number, "name": str(number)} for number, image in enumerate(images)]


def test_a_batch_equals_torchs_and_is_not_copied_again():
    images = [torch.rand(3, 4, 5) for _ in range(6)]
    made = examples(images)
    batch = collated(made)
    wanted = default_collate([{"image": image, "target": n, "name": str(n)} for n, image in enumerate(images)])
    assert torch.equal(batch["image"], wanted["image"])
    assert torch.equal(batch["target"], wanted["target"])
    assert batch["name"] == wanted["name"]
    assert batch["image"].data_ptr() == made[0]["image"].data_ptr()
    assert batch["image"].is_contiguous()


@pytest.mark.parametrize("chosen", [[1, 2, 3], [0, 2], [1, 0, 2], [0, 0, 1]])
def test_rows_in_another_order_are_stacked_as_they_come(chosen):
    images = [torch.full((2, 3), float(number)) for number in range(4)]
    rows = [example["image"] for example in examples(images)]
    found = stacked([rows[number] for number in chosen])
    assert torch.equal(found, torch.stack([images[number] for number in chosen]))
    assert found.data_ptr() != rows[0].data_ptr()


def test_fewer_than_there_is_room_for_are_stacked_where_they_are():
    places = Places(5)
    rows = [places.put(torch.full((2,), float(number))) for number in range(3)]
    found = stacked(rows)
    assert torch.equal(found, torch.tensor([[0.0, 0], [1, 1], [2, 2]]))
    assert found.data_ptr() == rows[0].data_ptr()


def test_pictures_of_several_sizes_keep_theirs():
    images = [torch.rand(3, 4, 4), torch.rand(3, 2, 2), torch.rand(3, 4, 4)]
    rows = [example["image"] for example in examples(images)]
    assert all(torch.equal(row, image) for row, image in zip(rows, images, strict=True))
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        stacked(rows)


def test_transposed_rows_of_a_room_are_not_taken_for_its_rows():
    places = Places(2)
    rows = [places.put(torch.rand(3, 3)).mT for _ in range(2)]
    assert torch.equal(stacked(rows), torch.stack([row.clone() for row in rows]))


class Counting(Dataset):
    """Examples that are put at their places, as pictures are."""

    def __getitems__(self, numbers):
        places = Places(len(numbers))
        return [places.put(torch.full((2, 2), float(number))) for number in numbers]

    def __len__(self):
        return 5


def shared(tensors):
    """A batch, and whether its memory can be seen by the other process without a copy."""
    batch = stacked(tensors)
    return batch, batch.data_ptr() == tensors[0].data_ptr() and batch.is_shared()


def test_reading_processes_put_them_where_the_training_process_sees_them():
    loader = DataLoader(Counting(), batch_size=2, num_workers=1, collate_fn=shared)
    found = list(loader)
    assert [batch[:, 0, 0].tolist() for batch, _ in found] == [[0, 1], [2, 3], [4]]
    assert all(is_shared for _, is_shared in found)
