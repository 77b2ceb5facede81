"""Several machines: torchrun agents that know each other over the network, of which one goes and comes back.

Here both are on one machine and loopback; each has its own process group, as a machine has its own power switch.
"""

import os
import socket
import sys
import time

import psutil
import pytest
import torch
from faults import differences
from forked import run_in_two, start

from castling.training import RunFolder, train
from castling.training.checkpoint import checkpoint_folders, load_last
from castling.training.recipe import recipe_text

# Agents of a test look after each other every second rather than every five, and do not wait long for more of them.
SOON = "last_call_timeout=15,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=120"


NUM_STEPS = 60
LONG = 300  # so many that a machine that is left alone still has work to do when the other one comes back


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_agent(words, arguments):
    """A torchrun agent, in a process that has torch imported; it starts workers as people's machines do."""
    from torch.distributed.run import main

    os.setsid()
    file = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # As docs/cluster.md says: torch's agents wait in vain for an address where only some of them are new.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    main(arguments)


class Machine:
    """One that runs an agent with one worker."""

    def __init__(self, folder, name, nodes, port, *command):
        self.words = folder / f"{name}.txt"
        self.arguments = [
            f"--nnodes={nodes}",
            "--nproc-per-node=1",
            "--max-restarts=9",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            f"--rdzv-conf={SOON}",
            "--monitor-interval=0.1",
            "-m",
            "castling",
            *map(str, command),
        ]

    def turn_on(self):
        self.agent = start(run_agent, self.words, self.arguments)
        return self

    def lose_power(self):
        """Agent and worker die at once; the worker has a session of its own."""
        children = psutil.Process(self.agent.pid).children(recursive=True)
        self.agent.kill()
        for child in children:
            child.kill()
        self.agent.join()

    def works(self):
        """Whether its agent has started a worker, which it does once machines have found each other."""
        return bool(psutil.Process(self.agent.pid).children())

    def said(self):
        return self.words.read_text() if self.words.exists() else ""


def wait_for(condition, *machines):
    ends_at = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < ends_at, "\n".join(machine.said()[-3000:] for machine in machines)
        time.sleep(0.01)


def num_steps(run):
    folders = checkpoint_folders(run / "checkpoints")
    return int(folders[-1].name.removeprefix("step-")) if folders else 0


def num_resumed(run):
    path = run / "events.jsonl"
    return path.read_text().count("resumed") if path.exists() else 0


def steady_recipe(micro, folder, num_steps):
    """A recipe whose rounding errors stay small, as a file too."""
    optimizer = "training.optimizer={name: momentum, momentum: 0.9, weight_decay: 0.01}"
    seldom = (f"training.epochs={num_steps // 3}", f"training.evaluate_every={num_steps // 3}", "training.log_every=20")
    recipe = micro(*micro.calm, optimizer, *seldom, "training.checkpoint_every=10")
    (folder / "recipe.yaml").write_text(recipe_text(recipe))
    return recipe


@pytest.fixture
def machines(tmp_path):
    """Makes machines, which are turned off in the end."""
    made, port = [], free_port()

    def make(nodes):
        command = ("train", tmp_path / "recipe.yaml", "--out", tmp_path / "run", "--go-on")
        made.append(Machine(tmp_path, f"machine {len(made)}", nodes, port, *command).turn_on())
        wait_for(lambda: is_open(port), *made)  # the first one keeps what they agree on
        return made[-1]

    yield make
    for machine in made:
        if machine.agent.is_alive():
            machine.lose_power()


def is_open(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_a_machine_that_went_and_came_back_changes_nothing(micro, machines, tmp_path):
    steady_recipe(micro, tmp_path, NUM_STEPS)
    first, second = machines("2"), machines("2")
    wait_for(lambda: num_steps(tmp_path / "run") >= 20, first, second)
    second.lose_power()
    before = num_steps(tmp_path / "run")
    second.turn_on()
    for machine in (first, second):
        wait_for(lambda machine=machine: not machine.agent.is_alive(), first, second)
        assert machine.agent.exitcode == 0, machine.said()[-3000:]
    assert 0 < before < num_steps(tmp_path / "run") == NUM_STEPS
    assert num_resumed(tmp_path / "run") == 1
    assert run_in_two("train", tmp_path / "recipe.yaml", "--out", tmp_path / "calm") == [0, 0]
    assert differences(tmp_path / "run", tmp_path / "calm") == []


@pytest.mark.slow
def test_one_machine_goes_on_alone_until_the_other_is_back(micro, machines, tmp_path):
    recipe = steady_recipe(micro, tmp_path, LONG)
    first, second = machines("1:2"), machines("1:2")
    wait_for(lambda: second.works() and num_steps(tmp_path / "run") >= 20, first, second)
    second.lose_power()
    before = num_resumed(tmp_path / "run")
    wait_for(lambda: num_resumed(tmp_path / "run") == before + 1, first, second)
    alone_from = num_steps(tmp_path / "run")
    wait_for(lambda: num_steps(tmp_path / "run") >= alone_from + 10, first, second)
    second.turn_on()
    wait_for(lambda: num_resumed(tmp_path / "run") == before + 2, first, second)
    for machine in (first, second):
        wait_for(lambda machine=machine: not machine.agent.is_alive(), first, second)
        assert machine.agent.exitcode == 0, machine.said()[-3000:]
    run = RunFolder(tmp_path / "run")
    assert (run.summary()["steps"], run.summary()["processes"]) == (LONG, 2)
    train(recipe, tmp_path / "calm")
    ours, theirs = (load_last(tmp_path / name / "checkpoints").weights["model"] for name in ("run", "calm"))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-4, rtol=0)


def run_apart(folders, command):
    """Two processes of one run, each in a folder of its own; returns their exit codes and what they said."""
    port = free_port()
    both = [
        start(call_in, str(folder), rank, port, [str(word) for word in command]) for rank, folder in enumerate(folders)
    ]
    for process in both:
        process.join(120)
    return [process.exitcode for process in both], [
        " ".join((folder / "words").read_text().split()) for folder in folders
    ]


def call_in(folder, rank, port, command):
    from forked import call_as_one_of_two, run_command

    from castling.training import processes

    os.chdir(folder)
    file = os.open("words", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    processes.PATIENCE = 1.0
    call_as_one_of_two(rank, port, run_command, (command,))


@pytest.fixture
def apart(micro, tmp_path):
    """Two folders that two machines have under one name; the recipe's data is in both."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pictures").symlink_to(micro.content["data"]["root"])
    (tmp_path / "a" / "recipe.yaml").write_text(recipe_text(micro("data.root=pictures", "training.max_steps=2")))
    return [tmp_path / "a", tmp_path / "b"]


@pytest.mark.slow
@pytest.mark.parametrize("resume", [False, True])
def test_a_run_folder_that_is_not_shared_is_said_by_all(apart, resume, tmp_path):
    command = ("train", "recipe.yaml", "--out", "run")
    if resume:
        codes, _ = run_apart(apart[:1] * 2, command)
        assert codes == [0, 0]
        command = ("train", "run")
    codes, said = run_apart(apart, command)
    assert codes == [2, 2]
    assert f"{tmp_path / 'b' / 'run'} is not the folder that process" in said[0]
    assert "all machines must see the run folder" in said[1]
    assert "Traceback" not in said[0] + said[1]
    assert not (tmp_path / "b" / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["other", "none"])
def test_machines_with_other_data_are_refused_by_all(apart, fewer_digits, what, tmp_path):
    (tmp_path / "b" / "pictures").unlink()
    if what == "other":
        (tmp_path / "b" / "pictures").symlink_to(fewer_digits)
    codes, said = run_apart(apart, ("train", "recipe.yaml", "--out", tmp_path / "run"))
    assert codes == [2, 2]
    wanted = "[96, 32] in process 0" if what == "other" else "no folder pictures"
    assert all(wanted in words and "Traceback" not in words for words in said)
    assert not (tmp_path / "run").exists()
