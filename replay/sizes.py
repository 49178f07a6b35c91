"""How big the pools are: counts, fractions and byte budgets become slots, or a pool of bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from slotwise.traces.errors import warn_caller

from .errors import BadOption, ReplayWarning

_UNITS = {
    "": 1,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "KI": 1024,
    "MI": 1024**2,
    "GI": 1024**3,
    "T": 1000**4,
    "TI": 1024**4,
}

MOST_BYTES = 2**60
MOST_SIZES = 65536  # of one range: more than a pool has experts


@dataclass(frozen=True)
class Size:
    """`slots` of each pool, or `pool_bytes` of a global pool of unequal rows; `capacity_bytes` of all pools."""

    slots: list[int]
    pool_bytes: int | None
    capacity_bytes: int | None
    asked: str


def parse_bytes(text: str | int) -> int:
    """`8GiB`, `900MiB`, `12GB` or plain bytes -> bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtT]?[iI]?)[bB]?\s*", str(text))
    if not match or match[2].upper() not in _UNITS:
        raise BadOption(f"cannot read {text!r} as bytes; write 8GiB, 900MiB, 12GB or a plain number of bytes")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if size > MOST_BYTES:
        raise BadOption(f"{str(text)[:40]}: more bytes than any machine has (at most {MOST_BYTES})")
    return int(size)


def parse_slot_list(text: str) -> list[str]:
    """`8,16,25%,32:128:32` -> ["8", "16", "25%", "32", "64", "96", "128"]. Ranges include their end."""
    out: list[str] = []
    for part in text.split(","):
        part = part.strip()
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9}):(\d{1,9})", part)
        if match:
            low, high, by = map(int, match.groups())
            if by == 0 or high < low or (high - low) // by >= MOST_SIZES:
                raise BadOption(
                    f"slots {part!r}: a range is low:high:step with low <= high, step >= 1 and at most "
                    f"{MOST_SIZES} sizes"
                )
            out += [str(s) for s in range(low, high + 1, by)]
        elif re.fullmatch(r"\d+|\d+(\.\d+)?%", part):
            out.append(part)
        else:
            raise BadOption(f"slots {part!r}: write a count (32), a fraction (25%), a list (8,16) or a range (8:128:8)")
    return out


def resolve(slots, vram, *, n_layers: int, n_experts: int, scope: str, row_bytes) -> Size:
    """The pools that `--slots` or `--vram` ask for. Exactly one of the two is given."""
    if (slots is None) == (vram is None):
        raise BadOption("give either slots or vram: --slots 32 (or 25%), or --vram 8GiB")
    n_pools = 1 if scope == "global" else n_layers
    keys = n_experts * (n_layers if scope == "global" else 1)
    if vram is None:
        if isinstance(slots, (list, tuple)):
            if scope == "global" or len(slots) != n_layers:
                raise BadOption(
                    f"slots: a list of {len(slots)} numbers; give one number, or in scope layer one for each of the "
                    f"{n_layers} layers"
                )
            each = [_count(one, keys) for one in slots]
            return Size(each, None, _bytes(each, row_bytes, scope), ", ".join(map(str, slots)))
        each = [_count(slots, keys)] * n_pools
        return Size(each, None, _bytes(each, row_bytes, scope), str(slots))
    if row_bytes is None:
        raise BadOption(f"vram {vram}: the trace does not record how large a row is; add --row-bytes N")
    budget = parse_bytes(vram)
    if scope == "global" and len(set(row_bytes)) > 1:
        return Size([keys], budget, budget, str(vram))
    share = budget if scope == "global" else budget // n_layers
    each = [min(keys, share // row) for row in (row_bytes[:1] if scope == "global" else row_bytes)]
    return Size(each, None, _bytes(each, row_bytes, scope), str(vram))


def _count(slots, keys: int) -> int:
    text = str(slots).strip()
    if re.fullmatch(r"\d+(\.\d+)?%", text):
        percent = float(text[:-1])
        if percent > 100:
            raise BadOption(f"slots {text}: a fraction of the pool's {keys} keys is at most 100%")
        return max(1, math.floor(keys * percent / 100 + 1e-9)) if percent else 0
    if not re.fullmatch(r"\d{1,15}", text):
        raise BadOption(f"slots {text[:40]!r}: write a count (32) or a fraction of the pool's {keys} keys (25%)")
    if int(text) > keys:
        warn_caller(f"slots {text}: a pool has only {keys} keys, so {keys} are used", ReplayWarning)
    return min(int(text), keys)


def _bytes(slots: list[int], row_bytes, scope: str) -> int | None:
    if row_bytes is None:
        return None
    if scope == "global":
        return slots[0] * row_bytes[0] if len(set(row_bytes)) == 1 else None
    return sum(s * r for s, r in zip(slots, row_bytes, strict=True))
