"""Who wins at each size, by how much, at what cost, and how far from the bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import metrics
from .curves import base_row, ranked, whole
from .rows import Row
from .sections import Look, Section, Size

NEARLY, FAR_FEWER = 0.02, 0.5  # of hit rate below the winner's, of the winner's loads: what `cheaper` means
LEVEL = 0.001  # of hit rate: closer than that nobody is better
LITTLE = 0.05  # of the misses: less is no gain
MOSTLY = 2 / 3  # of the misses: from there on a failure has one cause


@dataclass(frozen=True)
class Verdict:
    """The ranking at one size and one look-ahead, best first. Rows carry the counts, methods the comparisons."""

    size: Size
    look: Look
    ranking: list[Row]
    reference: Row | None  # lru without look-ahead
    bound: Row | None  # opt, which bounds what does not prefetch

    @property
    def winner(self) -> Row:
        return self.ranking[0]

    @property
    def tied(self) -> list[Row]:
        """Rows that hit exactly as often as the winner, itself among them."""
        return [row for row in self.ranking if row["hits"] == self.winner["hits"]]

    @property
    def runner_up(self) -> Row | None:
        """The best that hits less than the winner."""
        return self.ranking[len(self.tied)] if len(self.tied) < len(self.ranking) else None

    @property
    def cheaper(self) -> Row | None:
        """The one that loads least among those that hit nearly as often as the winner for far fewer loads."""
        rows = [row for row in self.ranking if self.lead(row) <= NEARLY and self.loads_below(row) <= FAR_FEWER]
        return min(rows, key=lambda row: row["fills"], default=None)

    def loads_below(self, row: Row) -> float:
        """Loads of `row` for each load of the winner."""
        return metrics.ratio(row["fills"], self.winner["fills"])

    def lead(self, other: Row | None) -> float:
        """Hit rate above `other`, as a fraction; nan without one."""
        return metrics.hit_rate(self.winner) - metrics.hit_rate(other) if other else float("nan")

    def fewer(self, other: Row | None) -> float:
        """Share of `other`'s misses that the winner does not have."""
        return metrics.fewer_misses(self.winner, other) if other else float("nan")

    def loads_against(self, other: Row | None) -> float:
        """Loads of the winner for each load of `other`."""
        return metrics.ratio(self.winner["fills"], other["fills"]) if other else float("nan")

    def requests_ahead(self) -> tuple[int, int] | None:
        """(requests in which the winner hits more than the runner-up, requests): is the lead of many, or of one?"""
        if not self.runner_up:
            return None
        mine, theirs = (_hits_by_request(row) for row in (self.winner, self.runner_up))
        names = [name for name in mine if name >= 0 and name in theirs]
        return (sum(mine[name] > theirs[name] for name in names), len(names)) if len(names) > 1 else None


def _hits_by_request(row: Row) -> dict[int, int]:
    return dict(zip(row["by_request"]["request"].tolist(), row["by_request"]["hits"].tolist(), strict=True))


def verdicts(section: Section) -> Iterator[Verdict]:
    """By size, then look-ahead."""
    plain = section.plain
    for size in section.sizes:
        reference = None if plain.width else section.row(section.reference, size, plain)
        bound = section.row(section.bound, size, plain)
        for look in section.looks:
            if rows := ranked(section, size, look):
                yield Verdict(size, look, rows, reference, bound)


def headline(section: Section) -> list[str]:
    """The answer in a few sentences, at the shown size."""
    found = {verdict.look: verdict for verdict in verdicts(section) if verdict.size == section.shown}
    plain, ahead = found.get(section.plain), found.get(section.best_look)
    out = []
    if plain:
        out += [_winner(section, plain), _decode(plain.winner), _cheaper(plain)]
        if plain.bound:
            out.append(_cause(plain))
    if ahead and ahead.look.width and ahead.look != section.plain:
        out += [_ahead(section, ahead), _cheaper(ahead)]
    elif plain and not plain.look.width and (wide := [verdict for look, verdict in found.items() if look.width]):
        best = max(wide, key=lambda verdict: (verdict.winner["hits"], -verdict.winner["fills"]))
        out.append(_no_gain(section, best, plain.winner))
    return [sentence for sentence in out if sentence]


def _winner(section: Section, verdict: Verdict) -> str:
    row, (reference, other) = verdict.winner, (verdict.reference, verdict.runner_up)
    at = f"At {section.where(verdict.size)}, {section.look_name(verdict.look)}"
    if row["phase"] != "all":
        at += f", in {row['phase']}"
    rate, cost = metrics.percent(metrics.hit_rate(row)), moves(row)
    told = []
    if len(verdict.ranking) == 1:
        lead = f"{at}, {row['policy']} hits {rate} of demands, for {cost}."
    elif len(verdict.tied) > 1:
        lead = (
            f"{at}, {len(verdict.tied)} policies tie at {rate} of demands; "
            f"{row['policy']} has the fewest loads: {cost}."
        )
    else:
        lead = f"{at}, {row['policy']} hits most: {rate} of demands, for {cost}."
    if reference and reference not in verdict.tied:
        told.append(_against(verdict, reference, reference["policy"]))
    if other and other is not reference:
        told.append(_against(verdict, other, f"the runner-up {other['policy']}"))
    if told:
        lead += f" That is {', and '.join(told)}."
    if verdict.bound:
        lead += f" {bound_word(verdict.bound).capitalize()} hits {metrics.percent(metrics.hit_rate(verdict.bound))}."
    return lead


def bound_word(bound: Row) -> str:
    """What `opt` is there: it decides for the whole run, so it bounds no single phase."""
    return "the bound" if bound["phase"] == "all" else f"{bound['policy']} over the whole run, no bound of one phase,"


def _against(verdict: Verdict, other: Row, name: str) -> str:
    lead = verdict.lead(other)
    points = f"{metrics.points(abs(lead)).lstrip('+')} points"
    above = (
        f"level with {name}, {points} apart"
        if abs(lead) < LEVEL
        else f"{points} {'above' if lead >= 0 else 'below'} {name}"
    )
    loads = metrics.number(whole(metrics.loads_per_token)(other))
    return f"{above} ({metrics.fewer_or_more(verdict.fewer(other))}), which loads {_rows(loads)} per token"


def _decode(row: Row) -> str:
    """Decode alone, where the figures above mix it with prefill."""
    parts = row["by_phase"]
    if row["phase"] != "all" or not (parts["prefill"]["demands"] and (c := parts["decode"])["demands"]):
        return ""
    loads = metrics.number(metrics.loads_per_token(c, metrics.tokens_of(c, row)))
    rate = metrics.percent(metrics.hit_rate(c))
    return f"That is over all phases; in decode alone {row['policy']} hits {rate}, for {_rows(loads)} loaded per token."


def moves(row: Row) -> str:
    """'4.8 rows loaded per token (12.9 MiB moved)'."""
    loads, moved = (whole(rate)(row) for rate in (metrics.loads_per_token, metrics.bytes_per_token))
    return f"{_rows(metrics.number(loads))} loaded per token" + (
        "" if metrics.unknown(moved) else f" ({metrics.size(moved)} moved)"
    )


def _rows(count: str) -> str:
    return f"{count} row{'s' * (count != '1')}"


def _cheaper(verdict: Verdict) -> str:
    """Who gives nearly the same for far fewer loads, if anybody does."""
    if not (row := verdict.cheaper):
        return ""
    rate, below = metrics.percent(metrics.hit_rate(row)), metrics.points(verdict.lead(row)).lstrip("+")
    return f"Nearly the same for far fewer loads: {row['policy']} hits {rate}, {below} points less, for {moves(row)}."


def _cause(verdict: Verdict) -> str:
    """Whether a low hit rate is the policy's failure or the working set's, or both; a phase alone has no bound.

    The bound knows the future: where no policy gains on the reference, the distance to it is nobody's failure.
    """
    row, bound, winner = verdict.reference or verdict.winner, verdict.bound, verdict.winner
    assert bound is not None
    share = metrics.unavoidable_share(row, bound)
    if metrics.unknown(share) or share > 1 or row["phase"] != "all":
        return ""
    if share >= MOSTLY:
        kind = "So it is mostly a working-set failure: more is asked for than the slots hold."
    elif len(verdict.ranking) > 1 and metrics.fewer_misses(winner, row) < LITTLE:
        kind = "No policy here gets near it: only the bound knows the future, so take it for a working-set failure."
    elif share <= 1 - MOSTLY:
        kind = "So it is mostly a policy failure: the slots would do."
    else:
        kind = "So it is both, a policy failure and a working-set failure."
    best = ""
    if winner["misses"] < row["misses"]:
        best = f"; {winner['policy']} avoids {metrics.percent(metrics.fewer_misses(winner, row), 0)}"
    most = metrics.percent(1 - share, 0)
    return f"Of the misses of {row['policy']}, evicting better avoids {most} at most, as the bound does{best}. {kind}"


def _no_gain(section: Section, verdict: Verdict, plain: Row) -> str:
    """That the best look-ahead hits no more than none at all, and what it costs."""
    row = verdict.winner
    lead = metrics.hit_rate(plain) - metrics.hit_rate(row)
    less = f"{metrics.points(lead).lstrip('+')} points less than" if lead > 0 else "no more than"
    times = metrics.ratio(row["fills"], plain["fills"])
    loads = "" if metrics.unknown(times) else f", for {metrics.number(times)} times the loads"
    return (
        f"Look-ahead does not pay: at its best, {section.look_name(verdict.look)}, {row['policy']} hits "
        f"{metrics.percent(metrics.hit_rate(row))}, {less} {plain['policy']} without it{loads}."
    )


def _ahead(section: Section, verdict: Verdict) -> str:
    """What look-ahead brings the policy that hits most with it, against the same policy without."""
    row, base = verdict.winner, base_row(section, verdict.winner["policy"], verdict.size)

    def told(rate, write, noun: str) -> str:
        without = f" ({write(whole(rate)(base))} without)" if base else ""
        return f"{write(whole(rate)(row))} {noun}{without}"

    rate = told(metrics.hit_rate, metrics.percent, "of demands")
    loads = told(metrics.loads_per_token, metrics.number, "rows loaded per token")
    if row["bytes_moved"] is not None:
        loads += f" and {told(metrics.bytes_per_token, metrics.size, 'moved')}"
    soon = "" if row["lag_prefetch"] else " That holds where a copy lands before the next layer needs it (lag 0)."
    return (
        f"With look-ahead, {row['policy']} hits most at {section.look_name(verdict.look)}: {rate}, for {loads}.{soon}"
    )
