"""Pickles of plain values and arrays of bytes, read without calling anything that they name.

A pickle is a program for a machine with a stack, and the usual one calls whatever the program asks for. This one knows
values, containers and how an array of bytes is spelled, and nothing else. Its memory and its steps are bounded by the
length of the file.
"""

from __future__ import annotations

import math
import pickletools
from typing import Any

import numpy as np

from castling.sentences import shown

_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_CONTAINERS = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_WITH_VALUE = (  # codes whose argument is the value
    *("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)
_OLD_TEXT = ("STRING", "BINSTRING", "SHORT_BINSTRING")  # of Python 2, whose text is bytes
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = ("PROTO", "FRAME", "STOP")
_ADMITTED = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
}
_BYTE_TYPES = ("u1", b"u1", "|u1", b"|u1")


class _Name:
    """Something that an array is spelled with; it cannot be called."""

    def __init__(self, what: str) -> None:
        self.what = what


class _Array:
    """An array before its state has come."""

    content: np.ndarray | None = None


def read_byte_pickle(content: bytes) -> Any:
    """What a pickle holds, with numpy's arrays of bytes.

    Args:
        content: the pickle.

    Raises:
        ValueError: for anything but plain values and arrays of bytes, or a damaged pickle.

    Example:
        >>> import pickle
        >>> read_byte_pickle(pickle.dumps({b"labels": [1, 2]}))
        {b'labels': [1, 2]}
        >>> read_byte_pickle(pickle.dumps(print))
        Traceback (most recent call last):
        ValueError: refused to load builtins.print: only arrays of bytes are admitted
    """
    machine = _Machine(len(content))
    try:
        for code, argument, _ in pickletools.genops(content):
            machine.step(code.name, argument)
    except (IndexError, KeyError) as error:  # what is wanted is not on the stack, or not in the memo
        raise _damaged() from error
    if len(machine.stack) != 1 or isinstance(machine.stack[0], _Name):
        raise _damaged()
    return _finished(machine.stack[0])


class _Machine:
    """What a pickle is run by.

    Args:
        length: the bytes of the pickle, and so the most that texts of it can become.
    """

    def __init__(self, length: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.left = length

    def step(self, code: str, argument: Any) -> None:
        """Do what one code says."""
        stack = self.stack
        if code in _WITH_VALUE:
            stack.append(argument)
        elif code in _OLD_TEXT:
            stack.append(argument.encode("latin1"))
        elif code in ("BINGET", "GET", "LONG_BINGET"):
            stack.append(self.memo[int(argument)])
        elif code in ("BINPUT", "PUT", "LONG_BINPUT"):
            self.memo[int(argument)] = stack[-1]
        elif code == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif code == "MARK":
            self.marks.append(len(stack))
        elif code in _VALUES:
            stack.append(_VALUES[code])
        elif code in _CONTAINERS:
            stack.append(_CONTAINERS[code]())
        elif code in _TUPLES:
            stack[-_TUPLES[code] :] = [tuple(stack[len(stack) - _TUPLES[code] :])]
        elif code not in _NOTHING:
            self._combine(code, argument)

    def _combine(self, code: str, argument: Any) -> None:
        stack = self.stack
        if code in ("TUPLE", "LIST"):
            items = self._since_mark()
            stack.append(tuple(items) if code == "TUPLE" else items)
        elif code in ("APPEND", "APPENDS"):
            items = [stack.pop()] if code == "APPEND" else self._since_mark()
            _of(list, stack[-1]).extend(items)
        elif code in ("SETITEM", "SETITEMS", "DICT"):
            items = [stack.pop(-2), stack.pop()] if code == "SETITEM" else self._since_mark()
            if code == "DICT":
                stack.append({})
            keys = items[::2]
            if len(items) % 2 or not all(type(key) in (str, bytes) for key in keys):
                raise ValueError("a dictionary has texts for keys, and a value for each")
            _of(dict, stack[-1]).update(zip(keys, items[1::2], strict=True))
        elif code == "GLOBAL":
            stack.append(_named(argument))
        elif code == "STACK_GLOBAL":
            name, module = _of(str, stack.pop()), _of(str, stack.pop())
            stack.append(_named(f"{module} {name}"))
        elif code == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            made = _spelled(_of(_Name, function).what, _of(tuple, arguments))
            if isinstance(made, bytes):
                self.left -= len(made)
            if self.left < 0:
                raise ValueError("its texts become more than it has")
            stack.append(made)
        elif code == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], _Array):
                stack[-1].content = _array(state)
            elif not (isinstance(stack[-1], _Name) and stack[-1].what == "bytes"):
                raise ValueError("only arrays of bytes are admitted")
        else:
            raise ValueError(f"only arrays of bytes are admitted; got the code {code}")

    def _since_mark(self) -> list[Any]:
        place = self.marks.pop()
        items = self.stack[place:]
        del self.stack[place:]
        return items


def _damaged() -> ValueError:
    return ValueError("it is a damaged pickle")


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _damaged()
    return value


def _named(name: str) -> _Name:
    if name not in _ADMITTED:
        said = shown(name.replace(" ", "."))[1:-1]
        raise ValueError(f"refused to load {said}: only arrays of bytes are admitted")
    return _Name(_ADMITTED[name])


def _spelled(what: str, arguments: tuple[Any, ...]) -> Any:
    """What a function would give for its arguments, where they are those of an array of bytes."""
    if what == "array":  # its class, shape and type are placeholders until its state comes
        return _Array()
    if what == "dtype" and arguments and type(arguments[0]) in (str, bytes) and arguments[0] in _BYTE_TYPES:
        return _Name("bytes")
    if what == "encode" and len(arguments) == 2 and arguments[1] == "latin1":
        return _of(str, arguments[0]).encode("latin1")  # bytes, as protocols up to 2 have them
    raise ValueError(f"only arrays of bytes are admitted; got {shown(arguments)}")


def _array(state: Any) -> np.ndarray:
    """The array of a state: version, shape, type, whether it is in Fortran's order, and its bytes."""
    if len(_of(tuple, state)) != 5:
        raise _damaged()
    _, shape, kind, in_columns, data = state
    if not (isinstance(kind, _Name) and kind.what == "bytes" and isinstance(data, bytes)):
        raise ValueError("only arrays of bytes are admitted")
    sides = [side for side in _of(tuple, shape) if type(side) is int and 0 <= side <= len(data)]
    if len(sides) != len(shape) or len(sides) > 8 or math.prod(sides) != len(data):
        raise ValueError(f"an array of the shape {shown(shape)} has {len(data)} bytes")
    return np.frombuffer(data, np.uint8).reshape(sides, order="F" if in_columns else "C")


def _finished(value: Any) -> Any:
    """Containers with the arrays that they were filled with; those of other shapes than CIFAR's stay as they are."""
    if isinstance(value, _Array):
        if value.content is None:
            raise _damaged()
        return value.content
    if isinstance(value, dict):
        return {key: _finished(item) if isinstance(item, _Array) else item for key, item in value.items()}
    return value
