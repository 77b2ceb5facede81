"""One training under a seeded schedule of faults, one row a fault, and whether it ended bit-equal to one left in peace.

A full disk is among the faults where this may mount a small one (as root); the last row says what the whole came to.
Every start is `castling train`, in a process forked from one that has torch imported; with `--cold` each begins from
nothing, which takes several times as long.

python benchmarks/fire.py [--faults 60] [--seed 0] [--cold] --out DIR
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the faults are those of the tests

from faults import KINDS, Command, Fire, Met, differences, mount_small_disk, schedule, unmount
from fire_run import LINES_PER_EPOCH, Forked, write_digits, write_recipe

from castling.bench.results_file import append_row, open_results


def under_fire(folder: Path, flags: argparse.Namespace, path: Path) -> Met:
    """Train under fire and in peace; returns the verdict."""
    disk = folder / "disk"
    small = mount_small_disk(disk)
    try:
        pictures = write_digits(folder / "pictures")
        recipe = write_recipe(folder / "recipe.yaml", pictures, flags.epochs)
        kinds = KINDS if small else [kind for kind in KINDS if kind != "full disk"]
        begin = Command if flags.cold else Forked
        calm = Fire(recipe, folder, pictures, begin)
        codes = [calm.finish()[0]]
        fire = Fire(recipe, disk, pictures, begin, flags.seed)
        met = []
        for number, fault in enumerate(schedule(flags.faults, flags.epochs * LINES_PER_EPOCH, flags.seed, kinds)):
            met.append(fire.meet(number, fault))
            append_row(path, _row(met[-1], folder))
            print(_row(met[-1], folder), flush=True)
        codes.append(fire.finish()[0])
        found = differences(fire.run, calm.run)
        steps = flags.epochs * (LINES_PER_EPOCH - 1)
        outcome = f"differs: {', '.join(found)}" if found else "bit-equal"
        fine = not found and codes == [0, 0] and all(one.expected for one in met)
        return Met(len(met), "all of them", steps, outcome, fine, sum(one.starts for one in met), "")
    finally:
        if small:
            unmount(disk)


def _row(met: Met, folder: Path) -> dict[str, object]:
    return {**asdict(met), "said": met.said.replace(f"{folder}/", "")}


def main() -> None:
    """Rows are on disk as soon as they are known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true", help="import torch at every start")
    parser.add_argument("--epochs", type=int, default=60, help="of ten steps each")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    flags = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that train
    path = open_results(flags.out, "fire")
    with tempfile.TemporaryDirectory() as folder:
        verdict = under_fire(Path(folder), flags, path)
    append_row(path, asdict(verdict))
    print(f"{verdict}\nwrote {path}")
    sys.exit(0 if verdict.expected else 1)


if __name__ == "__main__":
    main()
