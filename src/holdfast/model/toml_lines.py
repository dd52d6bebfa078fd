"""From TOML text to msgspec structs, with errors that name the file, the line, the key and the nearest right one.

Called by whatever reads a file that a person wrote: policies, scenarios, `holdfast.toml`. `tomllib` keeps no line
numbers, so `Places` has it read the text once more, statement by statement. Pure: texts come in, values or a
`ConfigError` go out; no time passes here.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as msgspec_inspect

from holdfast.errors import ConfigError

Path = tuple[str | int, ...]
T = TypeVar("T")

CHOICES_SHOWN = 100
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)")
_AT_PATH = re.compile(r"\s*- at `[^`]*`(?: in `[^`]*`)?$")
_CLOSINGS = ("", "]", "]]", "]}", "]]]", "]]}", "]}]", "]}}")


_type_info = functools.cache(msgspec_inspect.type_info)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong in a text: where, as a path of keys and indexes, and one sentence."""

    path: Path
    message: str


def load_toml(text: str, file: str = "") -> dict[str, Any]:
    """Parse TOML; a syntax error becomes a `ConfigError` that carries its line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        words = str(error)
        at = _AT_LINE.search(words)
        line = int(at.group(1)) if at else text.count("\n") + 1
        raise ConfigError(f"not valid TOML: {_AT_LINE.sub('', words)}", file=file, line=line) from error


def written(value: object) -> str:
    """A value as TOML has it, on one line: text, a number, a truth, or a list of these."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, list | tuple):
        return "[" + ", ".join(map(written, plain)) + "]"
    # JSON's strings are TOML's basic strings; numbers and truths are written alike.
    return msgspec.json.encode(plain).decode()


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice the person most likely meant, or None. One that differs only in case or dashes comes first."""
    known = list(choices)
    plain = word.casefold().replace("-", "_")
    for choice in known:
        if choice.casefold().replace("-", "_") == plain:
            return choice
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return found[0] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean "x"?`, or the choices when none is near and a person can read them all."""
    known = sorted(choices)
    near = nearest(word, known)
    if near is not None:
        return f'; did you mean "{near}"?'
    return f"; known here: {', '.join(known)}" if 0 < len(known) <= CHOICES_SHOWN else ""


def build(struct_type: type[T], data: Any, text: str = "", file: str = "", path: Path = ()) -> T:
    """Make a `struct_type` of parsed TOML, strictly: unknown keys are refused even where the struct would ignore them.

    Args:
        struct_type: any type msgspec can convert to, usually a Struct.
        data: the value that stands at `path` in the parsed text.
        text: the whole text, for line numbers.
        file: the file's name as the person gave it.
        path: where `data` stands in the text.

    Raises:
        ConfigError: names every wrong key or value; its `line` is that of the first.
    """
    problems = find_problems(struct_type, data, path)
    if not problems:
        try:
            return msgspec.convert(data, struct_type)
        except msgspec.ValidationError as error:
            problems = [_unexplained(error, path)]
    raise config_error(problems, text, file)


def why_refused(struct_type: Any, data: Any, error: msgspec.ValidationError, path: Path = ()) -> list[Problem]:
    """What is wrong with `data`, which msgspec has refused with this error: one problem at least."""
    return find_problems(struct_type, data, path) or [_unexplained(error, path)]


def _unexplained(error: msgspec.ValidationError, path: Path) -> Problem:
    return Problem(path, _AT_PATH.sub("", str(error)))


def config_error(problems: list[Problem], text: str, file: str) -> ConfigError:
    """One error for all problems, in the order in which they stand in the text: one line each."""
    places = Places(text)
    placed = sorted(((places.line(problem.path), problem.message) for problem in problems), key=lambda p: p[0])
    line, message = placed[0]
    more = [str(ConfigError(message, file=file, line=line)) for line, message in placed[1:]]
    return ConfigError("\n".join([message, *more]), file=file, line=line)


def find_problems(struct_type: Any, data: Any, path: Path = ()) -> list[Problem]:
    """Everything about `data` that does not fit `struct_type`; empty when it fits."""
    problems: list[Problem] = []
    _check(_type_info(struct_type), data, path, problems)
    return problems


def _check(info: msgspec_inspect.Type, data: Any, path: Path, problems: list[Problem]) -> None:
    """Descend where the shape is right, so that a problem is reported at the deepest place that explains it."""
    if isinstance(info, msgspec_inspect.Metadata):
        info = info.type
    if isinstance(info, msgspec_inspect.StructType) and isinstance(data, dict):
        _check_struct(info, data, path, problems)
    elif isinstance(info, msgspec_inspect.DictType) and isinstance(data, dict):
        _check_dict(info, data, path, problems)
    elif isinstance(info, (msgspec_inspect.ListType, msgspec_inspect.VarTupleType)) and isinstance(data, list):
        for index, item in enumerate(data):
            _check(info.item_type, item, (*path, index), problems)
    elif isinstance(info, msgspec_inspect.UnionType):
        _check_union(info, data, path, problems)
    elif isinstance(info, msgspec_inspect.EnumType):
        choices = [str(member.value) for member in info.cls]
        if data not in choices:
            hint = did_you_mean(str(data), choices)
            problems.append(Problem(path, f'{_name(path)} cannot be "{data}"{hint}'))
    else:
        _check_leaf(info, data, path, problems)


def _check_struct(info: msgspec_inspect.StructType, data: dict[str, Any], path: Path, problems: list[Problem]) -> None:
    fields = {field.encode_name: field for field in info.fields}
    allowed = [*fields, *([info.tag_field] if info.tag_field else [])]
    for key, value in data.items():
        if key in fields:
            _check(fields[key].type, value, (*path, key), problems)
        elif key not in allowed:
            where = f" in [{_dotted(path)}]" if path else ""
            problems.append(Problem((*path, key), f'unknown key "{key}"{where}{did_you_mean(key, allowed)}'))
    problems.extend(
        Problem(path, f'{_name(path)} lacks the key "{name}"')
        for name, field in fields.items()
        if field.required and name not in data
    )


def _check_dict(info: msgspec_inspect.DictType, data: dict[str, Any], path: Path, problems: list[Problem]) -> None:
    keys = info.key_type
    for key, value in data.items():
        if isinstance(keys, msgspec_inspect.EnumType):
            choices = [str(member.value) for member in keys.cls]
            if key not in choices:
                message = f'unknown key "{key}" in [{_dotted(path)}]{did_you_mean(key, choices)}'
                problems.append(Problem((*path, key), message))
                continue
        _check(info.value_type, value, (*path, key), problems)


def _check_union(info: msgspec_inspect.UnionType, data: Any, path: Path, problems: list[Problem]) -> None:
    """Of several types take the one that its tag names, else the one that comes closest."""
    structs = [member for member in info.types if isinstance(member, msgspec_inspect.StructType)]
    if isinstance(data, dict) and structs:
        tags = {str(member.tag): member for member in structs if member.tag_field}
        tag_field = next((member.tag_field for member in structs if member.tag_field), None)
        if tag_field is not None:
            tag = str(data.get(tag_field, ""))
            if tag in tags:
                _check_struct(tags[tag], data, path, problems)
            else:
                message = f'{_name(path)} needs {tag_field} = "..."; "{tag}" is not known{did_you_mean(tag, tags)}'
                problems.append(Problem((*path, tag_field) if tag_field in data else path, message))
            return
    tries: list[list[Problem]] = []
    for member in info.types:
        found: list[Problem] = []
        _check(member, data, path, found)
        if not found:
            return
        tries.append(found)
    deepest = max(tries, key=lambda found: max(len(problem.path) for problem in found))
    problems.extend(deepest)


def _check_leaf(info: msgspec_inspect.Type, data: Any, path: Path, problems: list[Problem]) -> None:
    complaint = _complaint(info, data)
    if complaint:
        problems.append(Problem(path, f"{_name(path)} {complaint}"))


def _complaint(info: msgspec_inspect.Type, data: Any) -> str:  # noqa: C901, PLR0912 - one line per TOML type
    """What is wrong with a plain value, as the end of a sentence; empty when it is right."""
    shown = _shown(data)
    match info:
        case msgspec_inspect.BoolType():
            return "" if isinstance(data, bool) else f"must be true or false, not {shown}"
        case msgspec_inspect.IntType() | msgspec_inspect.FloatType():
            whole = isinstance(info, msgspec_inspect.IntType)
            if isinstance(data, bool) or not isinstance(data, int if whole else (int, float)):
                return f"must be a {'whole number' if whole else 'number'}, not {shown}"
            if data != data:  # noqa: PLR0124 - nan is the one value that differs from itself
                return "must be a number, not nan"
            if info.ge is not None and data < info.ge:
                return f"must be at least {info.ge:g}, not {shown}"
            if info.gt is not None and data <= info.gt:
                return f"must be more than {info.gt:g}, not {shown}"
            if info.le is not None and data > info.le:
                return f"must be at most {info.le:g}, not {shown}"
            if info.lt is not None and data >= info.lt:
                return f"must be less than {info.lt:g}, not {shown}"
            return ""
        case msgspec_inspect.StrType():
            if not isinstance(data, str):
                return f"must be a text, not {shown}"
            if info.min_length is not None and len(data) < info.min_length:
                return "must not be empty"
            if info.pattern is not None and not re.search(info.pattern, data):
                return f"must look like {info.pattern}, not {shown}"
            return ""
        case msgspec_inspect.NoneType():
            return "" if data is None else f"must be left out, not {shown}"
        case msgspec_inspect.StructType() | msgspec_inspect.DictType():
            return "" if isinstance(data, dict) else f"must be a table, not {shown}"
        case msgspec_inspect.LiteralType():
            choices = [str(value) for value in info.values]
            return "" if data in info.values else f"cannot be {shown}{did_you_mean(str(data), choices)}"
        case msgspec_inspect.ListType() | msgspec_inspect.VarTupleType():
            return "" if isinstance(data, list) else f"must be a list, not {shown}"
        case _:
            return ""


def _shown(data: Any) -> str:
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, str):
        return f'"{data}"' if len(data) <= 40 else f'"{data[:40]}..."'
    if isinstance(data, dict):
        return "a table"
    return "a list" if isinstance(data, list) else repr(data)


def _dotted(path: Path) -> str:
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += ("." if out else "") + (part if _BARE_KEY.fullmatch(part) else f'"{part}"')
    return out


def _name(path: Path) -> str:
    return _dotted(path) or "the file"


class Places:
    """Where each key, table and array element stands in a text that `tomllib` has taken.

    `tomllib` is asked after each line: a header or a pair ends with the first line that makes it whole, and what is new
    inside an array shows once its brackets are closed for a try, or by itself where a line holds whole elements.

    Attributes:
        lines: path -> 1-based line.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        """Elements so far: of arrays of tables, and of an array that is open."""
        table: Path = ()
        array: Path | None = None
        said, first = "", 1
        for number, line in enumerate(text.split("\n"), start=1):
            said += f"{line}\n"
            more = _parsed(f"x = [{line}\n]") if array is not None else None
            if array is not None and more is not None:
                self._note(more["x"], array, number, self._counts[array])
                self._counts[array] += len(more["x"])
            else:
                array = None
                found, closing = _so_far(said)
                if found is None:
                    continue
                if said.lstrip().startswith("["):
                    table = self._header(found, first)
                else:
                    self._note(found, table, first)
                    array = self._open(found, table) if closing == "]" else None
                if not closing:
                    said = ""
            first = number + 1

    def line(self, path: Path) -> int:
        """The line of the key or element at this path, else of its nearest parent in the text, else 0."""
        return next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), 0)

    def _header(self, found: dict[str, Any], line: int) -> Path:
        """`[a.b]` alone is `{a: {b: {}}}`, `[[a.b]]` is `{a: {b: [{}]}}`."""
        path: Path = ()
        inner: Any = found
        while inner:
            ((key, inner),) = inner.items()
            path = (*path, key)
            self.lines.setdefault(path, line)
            if isinstance(inner, list):
                self._counts[path] = self._counts.get(path, 0) + 1
                inner = {}
            if path in self._counts:  # the array's newest element
                path = (*path, self._counts[path] - 1)
        self.lines[path] = line
        return path

    def _open(self, found: Any, path: Path) -> Path:
        """The array that a pair is in the middle of."""
        while isinstance(found, dict):
            ((key, found),) = found.items()
            path = (*path, key)
        self._counts[path] = len(found)
        return path

    def _note(self, value: Any, path: Path, line: int, start: int = 0) -> None:
        parts = value.items() if isinstance(value, dict) else enumerate(value, start) if isinstance(value, list) else ()
        for key, inner in parts:
            self.lines.setdefault((*path, key), line)
            self._note(inner, (*path, key), line)


def _so_far(text: str) -> tuple[dict[str, Any] | None, str]:
    """What a beginning of TOML holds, None inside a text of several lines; and the brackets that it still lacks."""
    for closing in _CLOSINGS:
        if (found := _parsed(text + closing)) is not None:
            return found, closing
    return None, ""


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
