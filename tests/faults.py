"""A training under fire: faults of a seeded schedule hit it one after the other, and after each it is started again.

The schedule is a pure function of its seed. `Fire` starts `castling train`, waits for the line of the log that a fault
is due at, lets it hit, looks at what the process says of it, and makes sure that the run goes on.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from castling.training.checkpoint import checkpoint_folders
from castling.training.manifest import read_whole

KINDS = (
    "SIGKILL",
    "SIGKILL while starting",
    "SIGTERM to the group",
    "SIGSTOP and SIGCONT",
    "full disk",
    "truncated checkpoint",
    "flipped bit in a checkpoint",
    "pictures away",
    "run folder away",
    "reading process killed",
)
HANG = 300  # seconds after which a process counts as hanging
MARGIN = 30  # lines before the end of the log at which the last fault hits: a process reads ahead
CHUNK = bytes(4096)


@dataclass(frozen=True)
class Fault:
    """What is to happen once the log of the run has so many lines."""

    kind: str
    line: int


@dataclass
class Met:
    """A fault that hit: the step it hit at, what came of it, and the starts after which the run went on."""

    fault: int
    kind: str
    step: int
    outcome: str
    expected: bool
    starts: int
    said: str


def schedule(num_faults, num_lines, seed, kinds=KINDS):
    """Faults spread over a log of so many lines; every kind comes as often as every other, give or take one."""
    rng = random.Random(seed)
    dealt = [kind for _ in range(-(-num_faults // len(kinds))) for kind in rng.sample(kinds, len(kinds))]
    places = [int((num_lines - MARGIN) * (number + rng.random()) / num_faults) + 1 for number in range(num_faults)]
    return [Fault(kind, line) for kind, line in zip(dealt, places, strict=False)]


class Command:
    """`castling` as a process at the head of a group of its own, whose words go to a file."""

    def __init__(self, arguments, words):
        with words.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "castling", *map(str, arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def exit_code(self):
        """None as long as it lives."""
        return self._process.poll()


class Fire:
    """A run, and the faults that hit it.

    Args:
        recipe: the file of its recipe, with two reading processes or more and a line of the log for every step.
        place: the folder for the run and for what its processes say; a small disk, if that is to be full.
        pictures: the folder of its pictures, one folder for each split and class.
        begin: starts a command from its arguments and a file for its words, as `Command` does.
        seed: of all that is random about how a fault hits.
    """

    def __init__(self, recipe, place, pictures, begin, seed=0):
        self.recipe, self.run, self.pictures, self.begin = recipe, place / "run", pictures, begin
        self.filler, self.words = place / "filler", recipe.with_name(f"{place.name}-words.txt")
        self.rng, self.life, self.starts, self.seconds_to_start = random.Random(seed), None, 0, 0.5

    def meet(self, number, fault):
        """Bring the run to where the fault is due, let it hit, and bring the run on."""
        if fault.kind == "SIGKILL while starting":
            self._kill()
            self._start()
            time.sleep(self.rng.uniform(0, self.seconds_to_start))
        else:
            self._reach(fault.line)
        self.starts, step = 0, self._step()
        hit = {
            "SIGKILL": self._kill,
            "SIGKILL while starting": self._kill,
            "SIGTERM to the group": self._terminate,
            "SIGSTOP and SIGCONT": self._stop,
            "full disk": self._fill_disk,
            "truncated checkpoint": lambda: self._damage(_truncate),
            "flipped bit in a checkpoint": lambda: self._damage(_flip_a_bit),
            "pictures away": lambda: self._take_away(self.rng.choice([self.pictures, self.pictures / "train" / "3"])),
            "run folder away": lambda: self._take_away(self.run),
            "reading process killed": self._kill_reader,
        }[fault.kind]
        outcome, expected = hit()
        said = "" if outcome == "went on" else self._last_words()
        self._reach(self._num_lines() + 1)
        if "checkpoint" in fault.kind:
            said = "the one before it is used"
            expected = said in self._all_words()
        return Met(number, fault.kind, step, outcome, expected, self.starts, said)

    def finish(self):
        """Train to the end, however long that takes; returns the exit code and the last words."""
        self._start()
        while self.life.exit_code() is None:
            time.sleep(0.05)
        return self.life.exit_code(), self._last_words()

    def _start(self):
        if self.life is None or self.life.exit_code() is not None:
            begun = ["train", self.run] if (self.run / "config.yaml").exists() else None
            self.life = self.begin(begun or ["train", self.recipe, "--out", self.run], self.words)
            self.starts += 1

    def _reach(self, line):
        """Wait until the log has so many lines, in a process that lives."""
        if self.life is None or self.life.exit_code() is not None:
            lowest, began = self._num_lines(), time.monotonic()
            self._start()
            while self.life.exit_code() is None and (found := self._num_lines()) <= lowest:
                lowest = found  # the log is cut back first
                time.sleep(0.005)
            self.seconds_to_start = time.monotonic() - began
        hangs_at = time.monotonic() + HANG
        while self._num_lines() < line:
            assert self.life.exit_code() is None, f"ended with {self.life.exit_code()}: {self._all_words()}"
            assert time.monotonic() < hangs_at, f"hangs at line {self._num_lines()}: {self._all_words()}"
            time.sleep(0.005)

    def _wait(self):
        hangs_at = time.monotonic() + HANG
        while self.life.exit_code() is None:
            assert time.monotonic() < hangs_at, f"does not end: {self._all_words()}"
            time.sleep(0.002)
        return self.life.exit_code()

    def _ends(self, code, sentence):
        """How the process ended, and whether as it should."""
        found = self._wait()
        return f"exit {found}", found == code and sentence in self._all_words()

    def _refused(self, arguments, sentence):
        """Whether another start ends with a sentence."""
        words = self.words.with_name("second.txt")
        self.starts += 1
        second = self.begin(arguments, words)
        hangs_at = time.monotonic() + HANG
        while second.exit_code() is None:
            assert time.monotonic() < hangs_at, words.read_text()
            time.sleep(0.002)
        said = " ".join(words.read_text().split())
        return second.exit_code() == 2 and sentence in said and "Traceback" not in said

    def _kill(self):
        if self.life is None:
            return "none lived", True
        self._signal(signal.SIGKILL)
        code = self._wait()
        return f"exit {code}", code in (-signal.SIGKILL, 0)  # 0: it was ready a moment before

    def _terminate(self):
        self._signal(signal.SIGTERM, group=True)
        return self._ends(128 + signal.SIGTERM, "go on with: castling train")

    def _stop(self):
        self._signal(signal.SIGSTOP, group=True)
        refused = self._refused(["train", self.run], "is being trained by process")
        self._signal(signal.SIGCONT, group=True)
        self.starts = 0
        return "went on", refused and self.life.exit_code() is None

    def _fill_disk(self):
        while self.life.exit_code() is None:
            self._fill()
            time.sleep(0.002)
        outcome, expected = self._ends(2, "No space left on device")
        self._fill()
        expected = self._refused(["train", self.run], "No space left on device") and expected
        self.filler.unlink()
        return outcome, expected

    def _fill(self):
        with suppress(OSError), self.filler.open("ab", buffering=0) as file:
            while True:
                file.write(CHUNK)

    def _damage(self, damage):
        self._kill()
        whole = [folder for folder in checkpoint_folders(self.run / "checkpoints") if _is_whole(folder)]
        while len(whole) < 2:
            self._reach(self._num_lines() + 4)
            self._kill()
            whole = [folder for folder in checkpoint_folders(self.run / "checkpoints") if _is_whole(folder)]
        self.starts = 0
        damage(self.rng, self.rng.choice(sorted(whole[-1].iterdir())))
        return f"exit {self.life.exit_code()}", True

    def _take_away(self, folder):
        away = folder.with_name(f"{folder.name}-away")
        folder.rename(away)
        outcome, expected = self._ends(2, str(folder))
        expected = "Traceback" not in self._all_words() and expected
        expected = self._refused(["train", self.run], "castling: ") and expected
        away.rename(folder)
        return outcome, expected

    def _kill_reader(self):
        me = psutil.Process(self.life.pid)
        readers = [child for child in me.children() if child.cmdline() == me.cmdline()]
        self.rng.choice(sorted(readers, key=lambda child: child.pid)).kill()
        return self._ends(2, "a reading process was killed")

    def _signal(self, signum, group=False):
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.life.pid, signum)

    def _num_lines(self):
        log = self.run / "log.jsonl"
        with suppress(OSError):
            return log.read_bytes().count(b"\n")
        return 0

    def _step(self):
        """How many steps the log tells of."""
        with suppress(OSError, ValueError):
            return max(json.loads(line)["step"] for line in (self.run / "log.jsonl").read_text().splitlines())
        return 0

    def _all_words(self):
        return " ".join(self.words.read_text().split())  # lines are broken wherever a terminal would end

    def _last_words(self):
        return next((line[10:] for line in self.words.read_text().splitlines() if line.startswith("castling: ")), "")


def differences(run, other):
    """Names of what differs between two finished runs: logs, summaries, files of the last and the best checkpoint."""
    found = [] if (run / "log.jsonl").read_bytes() == (other / "log.jsonl").read_bytes() else ["log.jsonl"]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, other)]
    for summary in summaries:
        del summary["seconds"]
    found += [] if summaries[0] == summaries[1] else ["summary.json"]
    files = [
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("checkpoints/step-*/*")}
        for folder in (run, other)
    ]
    return found + sorted(name for name in {**files[0], **files[1]} if files[0].get(name) != files[1].get(name))


def mount_small_disk(folder, size="2m"):
    """A file system with little room at a new folder; False where that is not allowed."""
    folder.mkdir(parents=True)
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    return subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]).returncode == 0


def unmount(folder):
    """Undo `mount_small_disk`."""
    subprocess.run(["umount", folder], check=True)


def _is_whole(folder):
    try:
        return bool(read_whole(folder))
    except ValueError:
        return False


def _truncate(rng, file):
    os.truncate(file, rng.randrange(file.stat().st_size))


def _flip_a_bit(rng, file):
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
