"""Good files turned bad, by seed: the same seed and the same corpus give the same bytes.

A mutator takes a generator, the content of a file and the contents of others of its kind. Those of bytes know no
format; the others take a file apart, spoil a part and put it together again, so that what is behind checksums and
lengths is reached as well.
"""

import copy
import gzip
import io
import json
import random
import re
import struct
import zipfile
import zlib

import yaml

INTEGERS = (0, 1, -1, 2, 127, 128, 255, 256, 32767, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
DEEP = 30_000  # levels of nesting
LONG = 100_000  # characters of a key or value
VALUES = (
    *(None, True, False, 0, -1, 1, 255, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "nan", "1", "a\nb", "\x1b[2J", "\u2028", "\ud800", "\x00"),
    *("../../etc/passwd", "/dev/zero", "os:system", "A" * LONG, [], {}, [None], [[]], {"": None}, {"a": {"b": []}}),
    *([0] * 1000, ["x", 1, None], {"class": "x"}, {"0": 1}),
)
TOKENS = (
    *(b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"9" * 30, b"9" * 5000, b"null", b"true", b"[", b"]", b"{", b"}"),
    *(b":", b",", b'"', b"'", b"- ", b"&a ", b"*a", b"!!python/object/apply:os.system ['exit']", b"<<: ", b"\n", b"\t"),
    *(b"<", b">", b"/>", b"&amp;", b"&x;", b"<!DOCTYPE x [<!ENTITY x 'y'>]>", b"<![CDATA[", b"\xff", b"\xc3", b"\0"),
    *(b"\xef\xbb\xbf", "\u2028".encode(), b"\x1b[31m", b"A" * LONG, b"[" * DEEP, b'{"a":' * DEEP, b"<a>" * DEEP),
)


def mutate_bytes(rng, content, others=()):
    """Bits, bytes, numbers and pieces of a file changed, one to four times."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        length = rng.randint(1, min(64, len(data) + 1))
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place : place + length] = rng.randbytes(length)
        elif kind == 2:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(INTEGERS) % 256**size
            data[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))
        elif kind == 3:
            del data[place:]
        elif kind == 4:
            del data[place : place + length]
        elif kind == 5:
            data[place:place] = data[place : place + length] * rng.choice((1, 2, 100))
        elif kind == 6 and others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[place:] = other[start:]
        else:
            data[place : place + length] = bytes([rng.choice((0, 255))]) * length
    return bytes(data)


def mutate_text(rng, content, others=()):
    """Words and signs of a text changed for each other's, or for what is seldom right."""
    parts = re.findall(rb"\w+|\s+|[^\w\s]", content) or [b""]
    for _ in range(rng.randint(1, 3)):
        place, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        kind = rng.randrange(6)
        if kind == 0:
            parts[place], parts[other] = parts[other], parts[place]
        elif kind == 1:
            parts[place] = rng.choice(TOKENS)
        elif kind == 2:
            parts.insert(place, rng.choice(TOKENS))
        elif kind == 3:
            del parts[place : place + rng.randint(1, 8)]
            parts = parts or [b""]
        elif kind == 4:
            parts[place:place] = parts[place : place + rng.randint(1, 20)]
        else:
            lines = b"".join(parts).split(b"\n")
            line = rng.randrange(len(lines))
            lines.insert(rng.randrange(len(lines) + 1), lines[line])  # keys twice, and in other places
            parts = re.findall(rb"\w+|\s+|[^\w\s]", b"\n".join(lines)) or [b""]
    return b"".join(parts)


def mutate_tree(rng, tree):
    """Values of a tree of mappings and lists changed for those of other types, left out, renamed or moved."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        places = [(None, None), *_places(tree)]
        holder, key = rng.choice(places)
        value = copy.deepcopy(rng.choice(VALUES))
        if holder is None:
            if rng.random() < 0.3:
                tree = value
            continue
        kind = rng.randrange(6)
        if kind <= 2:
            holder[key] = value
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, dict):
            holder[rng.choice(("", "a", "\x1b[2J", "A" * LONG, f"{key}s", "1"))] = holder.pop(key)
        else:
            other, name = rng.choice(places[1:])
            holder[key] = copy.deepcopy(other[name])
    return tree


def mutate_json(rng, content, others=()):
    """A json text, by its values or by its words."""
    if rng.random() < 0.3:
        return mutate_text(rng, content, others)
    return json.dumps(mutate_tree(rng, json.loads(content))).encode()


def mutate_lines(rng, content, others=()):
    """A text of one json value in a line."""
    lines = content.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    lines[place] = mutate_json(rng, lines[place]) + b"\n"
    return b"".join(lines)


def mutate_yaml(rng, content, others=()):
    """A yaml text, by its values or by its words."""
    if rng.random() < 0.4:
        return mutate_text(rng, content, others)
    tree = mutate_tree(rng, yaml.safe_load(content))
    return yaml.dump(tree, Dumper=_PlainDumper, sort_keys=False).encode("utf-8", "surrogatepass")


def mutate_safetensors(rng, content, others=()):
    """The bytes of a safetensors file, or its header with the length that it then has."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, content, others)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = content[8 : 8 + length], content[8 + length :]
    header = mutate_json(rng, header)
    return struct.pack("<Q", len(header)) + header + data


def mutate_gzip(rng, content, others=()):
    """What a gzip file holds, packed again; or its bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, content, others)
    return gzip.compress(mutate_bytes(rng, gzip.decompress(content)), 1, mtime=0)


def mutate_zip(mutators):
    """A mutator of archives: of a file in it, whose name ends so, by its own mutator; or of the archive's bytes.

    Args:
        mutators: mutators by ending.
    """

    def mutate(rng, content, others=()):
        if rng.random() < 0.3:
            return mutate_bytes(rng, content, others)
        files = {}
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        name = rng.choice([name for name in files if name.endswith(tuple(mutators))])
        ending = next(ending for ending in mutators if name.endswith(ending))
        files[name] = mutators[ending](rng, files[name])
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        return packed.getvalue()

    return mutate


def mutate_png(rng, content, others=()):
    """A chunk of a PNG file with the checksum that it then has; or its bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, content, others)
    chunks, place = [], 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    number = rng.randrange(len(chunks))
    name, data = chunks[number]
    if name == b"IDAT" and rng.random() < 0.5:
        data = zlib.compress(mutate_bytes(rng, zlib.decompress(data)), 1)
    elif rng.random() < 0.2:
        chunks.insert(number, chunks[number])
    else:
        data = mutate_bytes(rng, data)
    chunks[number] = (name, data)
    joined = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return content[:8] + joined


def seeded(name, seed):
    """A generator of its own for each reader and seed."""
    return random.Random(f"{name} {seed}")


def _places(tree):
    """Every place in a tree, as what holds it and its key."""
    pairs = []
    if isinstance(tree, dict):
        pairs = list(tree.items())
    elif isinstance(tree, list):
        pairs = list(enumerate(tree))
    found = []
    for key, value in pairs:
        found += [(tree, key), *_places(value)]
    return found


class _PlainDumper(yaml.SafeDumper):
    """No aliases for values that are there twice."""

    def ignore_aliases(self, data):
        return True
