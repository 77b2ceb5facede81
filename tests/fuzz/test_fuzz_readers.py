"""Whatever a file holds, it is read, or refused in one line by an error that the command turns into a sentence."""

import shutil
from contextlib import suppress

import pytest
from good_files import write
from guard import NotAllowed, guarded
from mutation import seeded
from readers import READERS, mutator_of

from castling.tasks.pictures import ENDINGS

FEW, MANY = 40, 2000
LONGEST = 2000  # characters of a message
NAMED = 5


def spoil(reader, folder, files, seed):
    """Write one file of the folder anew, spoiled by a seed; returns its name, and of all that is written anew."""
    rng = seeded(reader.name, seed)
    name = rng.choice(reader.spoiled or list(files))
    write(folder, {name: mutator_of(name)(rng, files[name], list(files.values()))})
    sealed = reader.seal(folder, name) if reader.seal is not None and rng.random() < 0.8 else None
    return name, [name] if sealed is None else [name, sealed]


def complaint(reader, folder, file, error):
    """What is wrong with an error; None for one that says all in a line."""
    text = str(error)
    if not isinstance(error, (ValueError, OSError)):
        return "is none that the command turns into a sentence"
    if len(text.splitlines()) != 1 or len(text) > LONGEST:
        return f"has {len(text.splitlines())} lines and {len(text)} characters"
    if not text.isprintable():
        return "has signs in it that change a terminal"
    if reader.names_file and file.suffix not in ENDINGS and file.name not in text and str(folder) not in text:
        return "names neither the file nor its folder"
    return None


def fuzz(reader, folder, count):
    """Read so many spoiled folders; returns how many were read, and the refusals."""
    folder.mkdir()
    files = reader.make(folder)
    write(folder, files)
    for name in reader.spoiled or files:
        reader.read(folder, folder / name)  # what is good is read
    num_read, refused, wrong = 0, [], []
    for seed in range(count):
        name, changed = spoil(reader, folder, files, seed)
        try:
            with guarded():
                reader.read(folder, folder / name)
            num_read += 1
        except (Exception, NotAllowed) as error:
            refused.append(str(error))
            problem = complaint(reader, folder, folder / name, error)
            if problem is not None:
                wrong.append(f"seed {seed}, {name}: {type(error).__name__} {problem}: {str(error)[:300]!r}")
                with suppress(OSError):
                    shutil.copytree(folder, folder.with_name(f"{reader.name}-{seed}"), dirs_exist_ok=True)
        write(folder, {name: files[name] for name in changed})  # all of them would take longer than reading
    assert not wrong, f"{len(wrong)} of {count} inputs for {reader.name}, kept in {folder.parent}:\n" + "\n".join(
        wrong[:NAMED]
    )
    return num_read, refused


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_some_spoiled_files_are_read_or_refused_in_a_line(reader, tmp_path):
    num_read, refused = fuzz(reader, tmp_path / reader.name, FEW)
    assert refused
    assert num_read + len(refused) == FEW


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_many_spoiled_files_are_read_or_refused_in_a_line(reader, tmp_path):
    num_read, refused = fuzz(reader, tmp_path / reader.name, MANY)
    assert num_read
    assert len(set(refused)) > 10  # for many reasons, not always the first one
