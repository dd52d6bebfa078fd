"""The plain case of `holdfast run`'s command line, read in a millisecond; anything else is left to `cli.run`.

Called by `cli.entry` for every launcher of a restarting job: the command-line library takes as long to load as all else
that starting ranks takes. Plain are known options with good values, then the script, or `--` and a command. Help,
mistakes and everything unusual give None, and the library reads the same line again and says what there is to say. Both
make their options of `RunOptions`. No time passes here.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.launch.options import RunOptions, Value, options


def read_plain(args: Sequence[str]) -> RunOptions | None:
    """The options of `holdfast run ARGS`, None when the line is not a plain one."""
    known = {f"--{name.replace('_', '-')}": (name, option) for name, option in options().items()}
    fields: dict[str, Value] = {}
    rest = list(args)
    while rest and rest[0].startswith("-") and "is_command" not in fields:
        word = rest.pop(0)
        if word in {"--", "-m", "--module"}:
            fields["is_command" if word == "--" else "is_module"] = True
            continue
        name, has_value, text = word.partition("=")
        if name not in known or (not has_value and not rest):
            return None
        field, option = known[name]
        value = option.read(text if has_value else rest.pop(0))
        if value is None or (option.least is not None and isinstance(value, int | float) and value < option.least):
            return None
        before = fields.get(field)
        fields[field] = (*before, *value) if field == "rules" and isinstance(before, tuple) else value  # type: ignore[misc]
    return RunOptions(argv=tuple(rest), **fields) if rest else None  # type: ignore[arg-type]
