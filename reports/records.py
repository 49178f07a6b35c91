"""Sections and rows -> records: numbers under their names, for CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from . import metrics
from .curves import whole
from .priced import Priced, winner_speeds
from .rows import IDENTITY, NESTED, OPTIONS, Row
from .sections import Section
from .verdict import verdicts

HEAD = ("policy", "slots", "slots_asked", "capacity_bytes", "width", "predictor", "horizon", "contract", "scope")
PART: dict[str, str] = dict(zip(NESTED, ("layer", "phase", "request", "first_step"), strict=True))


def winner_records(section: Section, prices: Priced | None = None) -> Iterator[dict[str, Any]]:
    """A line per size and look-ahead; with prices also how fast the winner is, and who is fastest."""
    for verdict in verdicts(section):
        row, size, other, bound = verdict.winner, verdict.size, verdict.runner_up, verdict.bound
        ahead = verdict.requests_ahead() or (None, None)
        tokens, cheaper = metrics.tokens_of(row, row), verdict.cheaper
        yield {
            "simulated": True, **{name: row[name] for name in ("trace", "contract", "scope")}, **section.differs,
            "sha256": row["trace_sha256"][:8], "slots": size.slots, "slots_asked": row["slots_asked"],
            "slots_share": section.share(size), "pool_bytes": size.pool_bytes,
            "width": verdict.look.width, "predictor": verdict.look.predictor or None, "horizon": verdict.look.horizon,
            "winner": row["policy"], "tied_with": "; ".join(other["policy"] for other in verdict.tied[1:]) or None,
            "hit_rate": metrics.hit_rate(row), "runner_up": other["policy"] if other else None,
            "lead": verdict.lead(other), "fewer_misses": verdict.fewer(other),
            "lead_over_lru": verdict.lead(verdict.reference), "fewer_misses_than_lru": verdict.fewer(verdict.reference),
            "bound_hit_rate": metrics.hit_rate(bound) if bound else None, "to_bound": verdict.lead(bound),
            "requests_ahead": ahead[0], "requests": ahead[1],
            "loads_per_token": metrics.loads_per_token(row, tokens),
            "loads_per_lru_load": verdict.loads_against(verdict.reference),
            "bytes_per_token": metrics.bytes_per_token(row, tokens),
            "cheaper": cheaper["policy"] if cheaper else None,
            "cheaper_hit_rate": metrics.hit_rate(cheaper) if cheaper else None,
            "cheaper_loads_per_token": whole(metrics.loads_per_token)(cheaper) if cheaper else None,
            **(winner_speeds(prices, row["policy"], size, verdict.look) if prices else {}),
        }  # fmt: skip


def configuration_records(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """A line per row: identity, options, rates, then every counter."""
    for row in rows:
        yield {
            "simulated": True, **{name: row[name] for name in (*IDENTITY, *OPTIONS)},
            **metrics.rates(row, metrics.tokens_of(row, row)), "token_cycle_bytes": row["token_cycle_bytes"],
            **{name: row[name] for name in (*metrics.COUNTERS, *metrics.NULLABLE)},
        }  # fmt: skip


def split_records(rows: Iterable[Row], split: str) -> Iterator[dict[str, Any]]:
    """A line per row and part of `split` (one of NESTED): which row, which part, hit rate, loads, and every counter.

    The row is told by HEAD, whatever other options the rows differ in, and the first digits of its trace's hash.
    """
    rows, part = list(rows), PART[split]
    names = [*HEAD, *(name for name in OPTIONS if name not in HEAD and len({row[name] for row in rows}) > 1)]
    for row in rows:
        head = {"simulated": True, "trace": row["trace"], "sha256": row["trace_sha256"][:8]}
        head |= {name: row[name] for name in names}
        for label, c in _parts(row, split):
            tokens = metrics.tokens_of(c, row) if split != "by_layer" else row["n_tokens_counted"]
            yield {
                **head,
                part: label,
                "hit_rate": metrics.hit_rate(c),
                "loads_per_token": metrics.loads_per_token(c, tokens),
                **c,
            }


def _parts(row: Row, split: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    counts, names = row[split], ["tokens", *metrics.COUNTERS, *metrics.NULLABLE]
    if split == "by_phase":
        yield from ((phase, {name: c[name] for name in names if name in c}) for phase, c in counts.items())
        return
    labels = range(row["n_layers"])
    if split != "by_layer":
        labels = counts["request" if split == "by_request" else "first_step"].tolist()
    columns = {name: counts[name].tolist() for name in names if counts.get(name) is not None and len(counts[name])}
    for i, label in enumerate(labels):
        yield label, {name: values[i] for name, values in columns.items()}
