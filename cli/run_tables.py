"""The printed form of one run: speed, where the time went, bandwidths beside ceilings, drops, what was decided."""

import click

from .screen import pairs, wrapped

PARTS = {
    "both_s": "hot and cold at once", "hot_alone_s": "hot alone", "cold_alone_s": "cold alone",
    "late_s": "awaited copies", "policy_s": "policy", "merge_s": "merge", "rest_s": "rest of the ticks",
    "between_s": "between ticks",
}  # fmt: skip
ENGINES = (
    ("copies", "copies_per_s", "copy_rows_per_s"),
    ("cold chain", "cold_per_s", "host_read_per_s"),
    ("hot chain", "hot_per_s", "device_read_per_s"),
)


def print_run(run: dict, n_sides: int) -> None:
    """As a person reads it."""
    from slotwise.telemetry import drops, late

    timing = run["timing"]
    wrapped(
        f"{run['policy']} on {run['trace']}, backend {run['backend']}, overlap {run['overlap']}: {_speed(timing)}, "
        f"{timing['tokens']:,} tokens in {timing['steps']:,} steps"
        + ("; plans equal the replay's, slots hold their rows" if run["checked"] else "")
        + ("; nothing was moved or computed, so this is the host's part alone" if run["backend"] == "null" else "")
    )
    wrapped(f"  {_where(run)}")
    for rows in run["rows_by_layer"] or ():
        wrapped(
            f"  layers {rows['layers']}: {' '.join(rows['dtypes'])}, {run['hidden']} x {rows['intermediate']}, "
            f"{rows['row_bytes']:,} bytes"
        )
    steps = (f"p{q} {1e3 * timing[f'step_p{q}_s']:.3f} ms" for q in (50, 95, 99))
    pairs("  step: ", steps, ", ")
    whole = sum(timing["parts"].values()) or 1
    shares = (f"{word} {100 * timing['parts'][name] / whole:.1f} %" for name, word in PARTS.items())
    pairs(f"  where the time went, {timing['timed_s']:.3g} s of a run timed tick by tick: ", shares, ", ")
    if run["lag_auto"]:
        wrapped(f"  lag_prefetch {run['lag_prefetch']} follows from the machine file")
    if run["incomplete"]:
        wrapped(f"  INCOMPLETE: {run['incomplete']['steps']} steps, then {run['incomplete']['error']}")
    if run["largest_error"] is not None:
        click.echo(f"  checked: largest error relative to float64 {run['largest_error']:.3g}")
    causes = ("hot_s", "cold_s", "copies_s", "policy_s", "wait_s", "late_s", "merge_s", "tick_s")
    pairs("  seconds: ", (f"{name[:-2]} {timing[name]:.4g}" for name in causes), ", ")
    pairs("  GB/s, and the ceiling of the same run: ", _bandwidths(run), ", ")
    wrapped(f"  overlap efficiency: {_efficiency(timing, n_sides)}")
    at_once, serial = timing["ticks_overlapped"], timing["ticks_serial"]
    wrapped(f"  ticks with work for both chains: {at_once:,} at once, {serial:,} one after the other")
    moved = (f"{name} {timing[name]:,}" for name in ("copies", "copy_batches", "bytes_copied", "reader_waits"))
    pairs("  copies: ", moved, ", ")
    waited = [f"{name} {timing[name]:,}" for name in ("hurried", "overtaken", "requeued") if timing[name]]
    if waited:
        pairs("  waited on the host: ", waited, ", ")
    wrapped(f"  {drops(run['counters'])}; {late(run['counters'], timing['diverted'])}")
    pairs("  counters: ", (f"{name} {count:,}" for name, count in run["counters"].items() if count), "  ")
    if run["plan_sha256"]:
        click.echo(f"  plan sha256: {run['plan_sha256']}")
    for failure in run["failures"][:3]:
        wrapped(f"  failed: {failure}")


def _where(run: dict) -> str:
    restricted = f", restricted to {run['restricted_to']}" if run["restricted_to"] else ""
    one = f"{run['intermediate']} in {'/'.join(dict.fromkeys(run['dtypes'] or []))}, {run['row_bytes'] or 0:,} bytes"
    rows = "rows that differ by layer" if run["rows_by_layer"] else f"rows of {run['hidden']} x {one}"
    return (
        f"on {run['machine']}, cold chain ({run['cold']}) of {run['cpu_threads']}; device: {run['device']}{restricted}"
        f"; {run['host']} {rows}; merge on {run['merge']}; {run['dense_us']:g} us a layer stand for attention"
    )


def _speed(timing: dict) -> str:
    if timing["tokens_per_s"] is None:
        return "no tokens/s (MEASURED; nothing ran)"
    low, high = timing["tokens_per_s_range"]
    repeats = timing["repeats"]
    of = f"{low:,.1f} to {high:,.1f} in {repeats} runs" if repeats > 1 else "one run, no interval: --repeats 5 gives it"
    return f"{timing['tokens_per_s']:,.1f} tokens/s (MEASURED; {of})"


def _bandwidths(run: dict):
    for word, achieved, ceiling in ENGINES:
        rate, best = run["achieved"][achieved], run["ceilings"][ceiling]
        if rate is None:
            yield f"{word} – (nothing measured)"
        else:
            yield f"{word} {rate / 1e9:.3g} of {'–' if best is None else f'{best / 1e9:.3g}'}"
    large = run["ceilings"]["copy_large_per_s"]
    yield f"large copies alone {'–' if large is None else f'{large / 1e9:.3g}'}"


def _efficiency(timing: dict, n_sides: int) -> str:
    if timing["overlap_efficiency"] is not None:
        return f"{timing['overlap_efficiency']:.3f}"
    if n_sides == 1:
        return "not known from one side; --overlap both measures it"
    return "none: no tick had work for both chains, so there was nothing to overlap"
