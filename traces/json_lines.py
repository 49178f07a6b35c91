"""JSON lines: the records of a file one at a time with their line numbers, and the checks of a field's value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .errors import BadTrace
from .importing import short, warn
from .reading import lines

LONGEST = 1 << 24  # bytes of a line; a router's whole softmax and logits over 512 experts take 20 kB


def first_record(path: Path, head: bytes) -> dict:
    """The object on the first line, for sniffing; empty if there is none. `head` is how the file begins."""
    if not head.lstrip().startswith(b"{"):
        return {}
    with path.open("rb") as file:
        line = file.readline(1 << 20)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def records(path: Path, longest: int = LONGEST) -> Iterator[tuple[int, str, dict]]:
    """(line, file and line for messages, object) of each line that is not blank; BadTrace if one is no JSON object."""
    with path.open("rb") as file:
        for at, line in enumerate(lines(file, longest), 1):
            where = f"{path} line {at}"
            if not line.strip():
                continue
            if len(line) == longest:
                raise BadTrace(f"{where}: longer than {longest} bytes; a line holds one record")
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                cut = "" if line.endswith(b"\n") else " (truncated?)"
                raise BadTrace(f"{where}: not JSON{cut}: {short(str(error))}") from None
            if not isinstance(record, dict):
                raise BadTrace(f"{where}: {short(record)}; a line is one JSON object")
            if not line.endswith(b"\n"):
                warn(where, "the file does not end with a line break; is it cut off?")
            yield at, where, record


def whole(where: str, record: dict, key: str, low: int, high: int) -> int:
    """The whole number under `key`, from low to high."""
    value = record.get(key)
    if type(value) is not int or not low <= value <= high:
        said = f"{key}={short(value)}" if key in record else f"no {key!r}"
        raise BadTrace(f"{where}: {said}; it must be a whole number from {low} to {high}")
    return value


def text(where: str, record: dict, key: str) -> str | None:
    """The text under `key`; None if it is absent or null."""
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise BadTrace(f"{where}: {key}={short(value)}; it must be text")
    return value
