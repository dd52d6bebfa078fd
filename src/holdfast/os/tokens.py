"""Bearer tokens as files hold them and requests carry them. What is none is never repeated: it may be a secret.

Every client reads its token here. No time passes.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.os.files import read_bounded

SIZE_MAX = 1 << 16
_TOKEN = re.compile(r"[\x21-\x7e]*")


def token_in(path: Path) -> str:
    """The token of a file, without the line's end; empty for an empty file.

    Raises:
        OSError: no ordinary file, one that is too large, or one that cannot be read.
        ConfigError: the file holds something else. The sentence names the file and none of its content.
    """
    token = read_bounded(path, SIZE_MAX).decode("ascii", errors="replace").strip()
    check_token(token, file=str(path))
    return token


def check_token(token: str, *, file: str = "") -> None:
    """Raise ConfigError for what no request can carry: several words or lines, control characters, other than ASCII."""
    if not _TOKEN.fullmatch(token):
        said = "is not a token file: " if file else ""
        raise ConfigError(f"{said}a token is one line of ASCII without spaces and control characters", file=file)
