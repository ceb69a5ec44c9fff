"""Stand-ins for a module that lives in another process, and the server for them.

This file runs inside the sandbox, in two processes. In the candidate's process it serves the
modules. In the process of the tests it stands in for them. Tests import the candidate's module as
always. They get functions and objects that ask over a pipe, in lines of JSON.

    None, true, numbers, texts, bytes, lists, tuples, dicts, sets    arrive as values of our own
    functions, classes, modules, instances                           stay there: a `Remote` asks
    exceptions                                                       are raised as a class of ours

An object of the candidate must not decide what it is equal to. It could claim to equal everything,
or look at the expected value and return the same. So an operator between a `Remote` and a value of
the tests works on the plain value of the object. It raises TypeError if the object is not a kind of
number, text or container. Between two objects of the candidate, the candidate decides.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import operator
import os
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

_SCALARS = (type(None), bool, int, str)
_PLAIN: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
)
_NO_ANSWER = "the candidate's process wrote something that is not an answer"
_OPERATORS = (*_COMPARE, *_ARITHMETIC, "getitem", "setitem", "delitem")
_UNARY = {"int": int, "float": float, "index": operator.index, "abs": abs, "neg": operator.neg, "round": round}


def pack(value: Any, export: Callable[[Any], Any]) -> Any:
    """Write a value as JSON. `export` writes values that are not plain."""
    kind = type(value)
    if kind in _SCALARS or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        return ["float", repr(value)]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind.__name__ in _PLAIN and kind is _PLAIN[kind.__name__]:
        return [kind.__name__, [pack(item, export) for item in value]]
    if kind is dict:
        return ["dict", [[pack(key, export), pack(item, export)] for key, item in value.items()]]
    return export(value)


def unpack(data: Any, make: Callable[[list[Any]], Any]) -> Any:
    """Read a value. `make` makes values that are not plain."""
    if type(data) is not list:
        return data
    match data:
        case ["float", str(digits)]:
            return float(digits)
        case ["bytes", str(digits)]:
            return bytes.fromhex(digits)
        case ["dict", list(pairs)]:
            return {unpack(key, make): unpack(item, make) for key, item in pairs}
        case [str(kind), list(items)] if kind in _PLAIN:
            return _PLAIN[kind](unpack(item, make) for item in items)
        case _:
            return make(data)


# -- the candidate's process -----------------------------------------------------------------------
class Served:
    """Does with the candidate's objects what the tests ask for."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading, self._writing = reading, writing
        self._objects: list[Any] = []
        self._ids: dict[int, int] = {}

    def serve(self) -> None:
        """Answer requests until the tests are over."""
        for line in self._reading:
            self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            args = [unpack(item, self._object) for item in request["args"]]
            named = {name: unpack(item, self._object) for name, item in request["named"].items()}
            reply = {"value": pack(self._do(request["do"], args, named), self._export)}
        except BaseException as error:
            reply = {"raised": self._export(type(error)), "args": self._args(error)}
        self._write(reply)

    def _do(self, what: str, args: list[Any], named: dict[str, Any]) -> Any:
        match what:
            case "import":
                return importlib.import_module(args[0])
            case "call":
                return args[0](*args[1:], **named)
            case "plain":
                return _plain(args[0])
            case "enter":
                return args[0].__enter__()
            case "exit":
                return args[0].__exit__(*args[1:])
            case "contains":
                return operator.contains(*args)
            case _ if what in _OPERATORS:
                return getattr(operator, what)(*args)
            case _:
                return getattr(builtins, what)(*args)

    def _args(self, error: BaseException) -> Any:
        try:
            return [item if type(item) in _SCALARS else str(item) for item in error.args]
        except BaseException:
            return []

    def _export(self, value: Any) -> Any:
        number = self._ids.get(id(value))
        if number is None:
            number = self._ids[id(value)] = len(self._objects)
            self._objects.append(value)  # kept for good, so that its id stays its own
        if isinstance(value, type) and issubclass(value, BaseException):
            own = [[self._number(base), base.__name__] for base in value.__mro__ if not _is_builtin(base)]
            base = next(base.__name__ for base in value.__mro__ if _is_builtin(base))
            return ["exception", own, base]
        return ["object", number, type(value).__name__]

    def _number(self, kind: type) -> int:
        if id(kind) not in self._ids:
            self._ids[id(kind)] = len(self._objects)
            self._objects.append(kind)
        return self._ids[id(kind)]

    def _object(self, data: list[Any]) -> Any:
        match data:
            case ["object", int(number)]:
                return self._objects[number]
            case ["function", int(number)]:
                return lambda *args, **named: self._call_back(number, args, named)
            case _:
                raise TypeError("this cannot be handed over")

    def _call_back(self, number: int, args: Sequence[Any], named: dict[str, Any]) -> Any:
        packed = {name: pack(item, self._export) for name, item in named.items()}
        self._write({"callback": number, "args": [pack(item, self._export) for item in args], "named": packed})
        while True:  # the function may ask for something before it returns
            reply = json.loads(self._reading.readline())
            if "do" not in reply:
                break
            self._answer(reply)
        if "raised" in reply:
            raise getattr(builtins, reply["raised"], RuntimeError)(reply["text"])
        return unpack(reply["value"], self._object)

    def _write(self, reply: Any) -> None:
        self._writing.write(json.dumps(reply).encode() + b"\n")
        self._writing.flush()


def _plain(value: Any) -> Any:
    """Return the plain value of a kind of number, text or container, without calling its own
    methods."""
    kinds: tuple[Any, ...] = (bool, int, float, str, bytes, list, tuple, set, frozenset)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(kind.__iter__(value)) if kind in (list, set) else kind.__new__(kind, value)
    if isinstance(value, dict):
        return dict(dict.items(value))
    raise TypeError(f"a {type(value).__name__} has no plain value to compare or calculate with")


def _is_builtin(kind: type) -> bool:
    return kind.__module__ == "builtins" and getattr(builtins, kind.__name__, None) is kind


def serve_candidate(folder: str) -> None:
    """Serve the modules of a folder on our standard streams."""
    reading, writing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path.append(folder)
    Served(reading, writing).serve()


# -- the process of the tests ----------------------------------------------------------------------
class Line:
    """The pipe to the candidate's process, which starts at the first request."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self._process: subprocess.Popen[bytes] | None = None
        self._functions: list[Callable[..., Any]] = []
        self._exceptions: dict[int, type] = {}

    def ask(self, what: str, /, *args: Any, **named: Any) -> Any:
        """Ask the candidate's process to do something, and return or raise its result."""
        request = {"do": what, "args": [pack(item, self._export) for item in args]}
        self._send(request | {"named": {name: pack(item, self._export) for name, item in named.items()}})
        while True:
            reply = self._receive()
            if "callback" not in reply:
                break
            self._send(self._called(reply))
        if "raised" in reply:
            raise self._raised(reply)
        if "value" not in reply:
            raise RuntimeError(_NO_ANSWER)
        return unpack(reply["value"], self._make)

    def _called(self, reply: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self._functions[reply["callback"]]
            args = [unpack(item, self._make) for item in reply["args"]]
            named = {name: unpack(item, self._make) for name, item in reply["named"].items()}
            return {"value": pack(function(*args, **named), self._export)}
        except Exception as error:
            return {"raised": type(error).__name__, "text": str(error)}

    def _send(self, value: Any) -> None:
        if self._process is None:
            self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the candidate's process has ended")
        reply = json.loads(line)
        if type(reply) is not dict:
            raise RuntimeError(_NO_ANSWER)
        return reply

    def _export(self, value: Any) -> Any:
        if isinstance(value, Remote | RemoteModule):
            return ["object", value.__dict__["_rft_number"]]
        if callable(value) and not isinstance(value, type):
            self._functions.append(value)
            return ["function", len(self._functions) - 1]
        raise TypeError(f"a {type(value).__name__} cannot be handed to the code under test: use plain values")

    def _make(self, data: list[Any]) -> Any:
        match data:
            case ["object", int(number), str(name)]:
                return Remote(self, number, name)
            case ["exception", list(own), str(base)]:
                return self._exception(own, base)
            case _:
                raise RuntimeError(_NO_ANSWER)

    def _exception(self, own: list[Any], base: str) -> type:
        """Return our class for an exception class of the candidate. A class that would stop the
        tests becomes RuntimeError."""
        kind = getattr(builtins, base, None)
        if not (isinstance(kind, type) and (kind is SystemExit or issubclass(kind, Exception))):
            kind = RuntimeError
        for number, name in reversed(own):
            kind = self._exceptions.setdefault(number, type(str(name), (kind,), {}))
        return kind

    def _raised(self, reply: dict[str, Any]) -> BaseException:
        kind = unpack(reply["raised"], self._make)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise RuntimeError(_NO_ANSWER)
        try:
            return kind(*[item for item in reply["args"] if type(item) in _SCALARS])
        except TypeError:
            return RuntimeError(f"{kind.__name__}")


class Remote:
    """An object of the candidate. Our own names begin with `_rft_`, so that they hide none of
    its."""

    def __init__(self, line: Line, number: int, name: str) -> None:
        self.__dict__.update(_rft_line=line, _rft_number=number, _rft_name=name)

    def _rft_ask(self, what: str, /, *args: Any, **named: Any) -> Any:
        return self._rft_line.ask(what, self, *args, **named)

    def _rft_sure(self, kind: type, what: str, *args: Any) -> Any:
        found = self._rft_ask(what, *args)
        if type(found) is not kind:
            raise TypeError(f"{what} of the candidate's {self._rft_name} gave no {kind.__name__}")
        return found

    def _rft_value(self) -> Any:
        found = self._rft_ask("plain")
        if isinstance(found, Remote):
            raise TypeError(f"the candidate's {self._rft_name} has no plain value")
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__", "__dict__", "__members__"):
            raise AttributeError(name)
        return self._rft_ask("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._rft_ask("setattr", name, value)

    def __delattr__(self, name: str) -> None:
        self._rft_ask("delattr", name)

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        return self._rft_ask("call", *args, **named)

    def __getitem__(self, key: Any) -> Any:
        return self._rft_ask("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._rft_ask("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._rft_ask("delitem", key)

    def __iter__(self) -> Any:
        return self._rft_ask("iter")

    def __next__(self) -> Any:
        return self._rft_ask("next")

    def __contains__(self, item: Any) -> bool:
        return self._rft_sure(bool, "contains", item) if isinstance(item, Remote) else item in self._rft_value()

    def __len__(self) -> int:
        return self._rft_sure(int, "len")

    def __bool__(self) -> bool:
        return self._rft_sure(bool, "bool")

    def __str__(self) -> str:
        return self._rft_sure(str, "str")

    def __repr__(self) -> str:
        return self._rft_sure(str, "repr")

    def __hash__(self) -> int:
        return hash(self._rft_number)

    def __enter__(self) -> Any:
        return self._rft_ask("enter")

    def __exit__(self, *exc: Any) -> Any:
        return self._rft_ask("exit", None, None, None)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and value._rft_sure(bool, "isinstance", self)

    def __subclasscheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and value._rft_sure(bool, "issubclass", self)


def _binary(name: str) -> Callable[[Remote, Any], Any]:
    function = getattr(operator, name)

    def operate(self: Remote, other: Any) -> Any:
        if not isinstance(other, Remote):
            return function(self._rft_value(), other)
        return self._rft_sure(bool, name, other) if name in _COMPARE else self._rft_ask(name, other)

    return operate


def _reflected(name: str) -> Callable[[Remote, Any], Any]:
    return lambda self, other: getattr(operator, name)(other, self._rft_value())


def _unary(name: str) -> Callable[..., Any]:
    return lambda self, *args: _UNARY[name](self._rft_value(), *args)


for _name in (*_COMPARE, *_ARITHMETIC):
    setattr(Remote, f"__{_name.rstrip('_')}__", _binary(_name))
for _name in _ARITHMETIC:
    setattr(Remote, f"__r{_name.rstrip('_')}__", _reflected(_name))
for _name in _UNARY:
    setattr(Remote, f"__{_name}__", _unary(_name))


class RemoteModule(types.ModuleType):
    """A module of the candidate."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(name)
        return self.__dict__["_rft_line"].ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, types.ModuleType):
            super().__setattr__(name, value)
        else:
            self.__dict__["_rft_line"].ask("setattr", self, name, value)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules under test from the candidate's process, and no others."""

    def __init__(self, line: Line, modules: Sequence[str]) -> None:
        self._line, self._modules = line, modules

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._modules:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made = RemoteModule(spec.name)
        found = self._line.ask("import", spec.name)
        if not isinstance(found, Remote):
            raise ImportError(f"{spec.name} is not a module")
        made.__dict__.update(_rft_line=self._line, _rft_number=found.__dict__["_rft_number"])
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the candidate's process has executed the module."""
