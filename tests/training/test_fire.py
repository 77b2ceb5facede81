"""A run under fire ends as one that was left in peace; benchmarks/fire.py is the long form of it."""

from collections import Counter

import pytest
from faults import KINDS, Fire, differences, mount_small_disk, schedule, unmount
from fire_run import LINES_PER_EPOCH, Forked, write_digits, write_recipe

EPOCHS = 12


def test_a_schedule_is_that_of_its_seed_and_has_every_kind_as_often():
    faults = schedule(60, 700, seed=3)
    assert faults == schedule(60, 700, seed=3) != schedule(60, 700, seed=4)
    assert set(Counter(fault.kind for fault in faults).values()) == {6}
    lines = [fault.line for fault in faults]
    assert lines == sorted(lines)
    assert lines[-1] < 700


@pytest.mark.slow
def test_a_run_under_fire_ends_bit_equal(tmp_path):
    disk = tmp_path / "disk"
    small = mount_small_disk(disk)
    kinds = KINDS if small else [kind for kind in KINDS if kind != "full disk"]
    try:
        pictures = write_digits(tmp_path / "pictures")
        recipe = write_recipe(tmp_path / "recipe.yaml", pictures, EPOCHS)
        fire = Fire(recipe, disk, pictures, Forked)
        met = [
            fire.meet(number, fault)
            for number, fault in enumerate(schedule(len(kinds), EPOCHS * LINES_PER_EPOCH, seed=0, kinds=kinds))
        ]
        assert [fault for fault in met if not fault.expected] == []
        assert fire.finish()[0] == 0
        calm = Fire(recipe, tmp_path, pictures, Forked)
        assert calm.finish()[0] == 0
        assert differences(fire.run, calm.run) == []
    finally:
        if small:
            unmount(disk)
    if not small:
        pytest.skip("all but a full disk, which only root may mount: tests of quotas cover it")
