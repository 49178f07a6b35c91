"""An answer in sentences: what to run, what it beats, what more memory buys, and what it stands on."""

from __future__ import annotations

from typing import Any

from slotwise.reports.metrics import size

WORDS = {"all_cpu": "all experts on the CPU", "no_cache": "no cache (every row fetched)", "bound": "the bound opt"}


def sentences(found: dict[str, Any]) -> list[str]:
    """The answer, the most important first; every speed with its interval."""
    return [*_run(found), *_more(found), *_beside(found), *_ground(found)]


def rate(one: dict[str, Any], name: str = "tokens_per_s") -> str:
    """`42.31 (40.10 to 44.20)`, or the figure alone where there is no interval."""
    return figure(one[name], one[f"{name}_interval"])


def figure(value: float | None, interval: Any, digits: int = 2) -> str:
    if value is None:
        return "–"
    between = "" if interval is None else f" ({interval[0]:,.{digits}f} to {interval[1]:,.{digits}f})"
    return f"{value:,.{digits}f}{between}"


def pools(one: dict[str, Any]) -> str:
    """`37 slots in each layer`, `810 slots in one pool of all layers`."""
    if one["slots_by_layer"]:
        return f"{min(one['slots_by_layer'])} to {max(one['slots_by_layer'])} slots by layer, since rows differ"
    where = "in each layer" if one["scope"] == "layer" else "in one pool of all layers"
    return f"{one['slots']:,} slots {where}" if one["slots"] is not None else f"as many rows as fit {where}"


def _run(found: dict[str, Any]) -> list[str]:
    without = ", ".join(f"no {name}" for name in ("gate", "guard") if not found[name])
    parts = f" ({without})" if without else ""
    hits = found["hit_rate_interval"]
    between = f" ({100 * hits[0]:.1f} to {100 * hits[1]:.1f})" if hits else ""
    label = f"{found['label']}, by your anchors" if found["anchors"] else found["label"]
    verify = f" of {found['verify_tokens']} tokens" if found["verify_tokens"] > 1 else ""
    held = [
        f"{one['times']:.2f}{_between(one['times_interval'])} times {WORDS[name]}, {rate(one)}"
        for name, one in found["against"].items()
    ]
    unknown = "" if "bound" in found["against"] else "; the bound is not known where rows of unequal size share a pool"
    what = f"{pools(found)}, width {found['width']}, overlap {found['overlap']}"
    speed = f"{label}: {rate(found)} tokens/s of {found['phase']} steps{verify}"
    return [
        f"Run {found['policy']}{parts}: {what}. {speed}, hit rate {100 * found['hit_rate']:.1f} %{between}.",
        f"Against it, in tokens/s: {'; '.join(held)}{unknown}.",
        f"Memory: {found['sum']}, {size(found['pool_bytes'])} of it for experts.",
    ]


def _more(found: dict[str, Any]) -> list[str]:
    here = next((one for one in found["curve"] if one["pool_bytes"] == found["pool_bytes"]), None)
    flat = found["flat_from_bytes"]
    said = []
    if here and here["per_gib"] is not None:
        between = here["per_gib_interval"]
        unsure = ", no more than this trace leaves open" if between and between[0] <= 0 <= between[1] else ""
        said.append(f"a further GiB brings {figure(here['per_gib'], between)} tokens/s "
                    f"({100 * here['share_per_gib']:.1f} %{unsure})")  # fmt: skip
    else:
        said.append("all experts fit, more memory brings nothing")
    if flat > found["pool_bytes"]:
        said.append(f"from {size(flat)} of pools on it is less than 1 %")
    return [f"More memory: {', '.join(said)}."]


def _beside(found: dict[str, Any]) -> list[str]:
    out = []
    ahead = found["prefetch"]
    if found["all_resident"]:
        out.append("Look-ahead has nothing to bring: the pools hold all experts, so each is loaded once.")
    elif ahead:
        need, had = ("–" if ahead[n] is None else f"{ahead[n]:.2f}" for n in ("break_even_precision", "precision"))
        never = " (above 1: no predictor pays)" if (ahead["break_even_precision"] or 0) > 1 else ""
        who = {"trace": "the trace's predictions", "oracle": "an oracle (the trace has no predictions)"}
        best = ""
        if ahead["ceiling"] and ahead["predictor"] != "oracle":
            best = f"; an oracle: {figure(ahead['ceiling']['gain'], ahead['ceiling']['gain_interval'])} times"
        out.append(
            f"Look-ahead {'pays' if ahead['pays'] else 'does not pay'} on this machine: {ahead['policy']}, width "
            f"{ahead['width']}, by {who.get(ahead['predictor'], ahead['predictor'])}: "
            f"{figure(ahead['gain'], ahead['gain_interval'])} times the speed without{best}; precision {had}, needed "
            f"{need}{never}."
        )
    warm = found["warm_up"]
    if warm:
        about = "within the first" if not warm["steps"] else "after about"
        steps = max(warm["steps"], warm["window_steps"])
        took = f", {warm['seconds']:.1f} s" if warm["seconds"] else ""
        out.append(f"Warm-up: {about} {steps:,} steps{took}, pools hit at 95 % of their steady "
                   f"{100 * warm['steady_hit_rate']:.1f} %.")  # fmt: skip
    layers = found["by_layer"]
    if layers:
        span = f"{min(layers['slots'])} to {max(layers['slots'])}"
        out.append(
            f"Slots that differ by layer ({span}, of {layers['policy']}) {'pay' if layers['pays'] else 'do not pay'}: "
            f"{figure(layers['gain'], layers['gain_interval'], 3)} times the same bytes evenly, {rate(layers)}."
        )
    return out


def _ground(found: dict[str, Any]) -> list[str]:
    held, fit = found["held_out"], found["anchors"]
    where = {"request": "other requests", "step": "the steps after them", None: "the same ones"}[held["by"]]
    chosen = f"Chosen among {len(found['candidates'])} on {held['chosen_steps']:,} steps"
    judged = f"judged on {held['judged_steps']:,}: {where}"
    sure = " Intervals are of 95 %, for another sample of this workload." if found["tokens_per_s_interval"] else ""
    out = [f"{chosen}, {judged}.{sure}"]
    if fit:
        worst = max(abs(one["by_line"] / one["tokens_per_s"] - 1) for one in fit["points"])
        off = f"; the line is off by up to {100 * worst:.1f} % at them" if len(fit["points"]) > 2 else ""
        out.append(
            f"By your {len(fit['points'])} anchors ({fit['policy']}): a step takes {1e3 * fit['base_s']:.3f} ms and a "
            f"miss {1e6 * fit['miss_s']:.1f} us more{off}. Speeds count misses alone: no loads, no link, no overlap."
        )
    else:
        out.append(f"It holds for our executor on {found['machine']}: another engine has another overhead (--anchor).")
    return out


def _between(interval: Any) -> str:
    return "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
