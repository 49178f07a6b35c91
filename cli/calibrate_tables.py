"""A measured machine for a person to read: its figures with their spread, and both chains by rows."""

from .screen import columns, show


def print_machine(machine):
    """Figures, then seconds of both chains by tokens and rows."""
    show(columns(("figure", "value", "spread"), [_line(name, figure) for name, figure in machine.figures.items()],
                 ("figure",)))  # fmt: skip
    calls = [
        (family, *(f"{1e6 * each.value:,.2f} us ± {1e6 * each.spread:,.2f}" for each in figures.values()))
        for family, figures in machine.policies.items()
    ]
    show(columns(("policy", "decides in", "and ahead"), calls, ("policy",)))
    rows = [
        (
            sheet.chain, str(sheet.tokens), str(n), f"{1e6 * times[0]:,.1f} us", f"± {1e6 * spread[0]:,.1f}",
            f"{n * sheet.row_bytes / times[0] / 1e9:,.1f} GB/s",
        )
        for sheet in machine.sheets
        for n, times, spread in zip(sheet.rows, sheet.seconds, sheet.spread_s, strict=True)
    ]  # fmt: skip
    show(columns(("chain", "tokens", "rows", "takes", "spread", "reads"), rows, ("chain",)))
    for each in machine.contention:
        shares = ", ".join(
            f"{name.replace('_', ' ')} {100 * share.value:.0f} %"
            for name, share in vars(each).items()
            if name != "threads"
        )
        show(f"of its speed alone, at {each.threads} thread{'s' * (each.threads != 1)}: {shares}")
    if machine.overlap:
        hot, cold, seconds = machine.beside
        show(
            f"both chains at once: the hot one keeps {100 * hot:.0f} % of its speed, the cold one {100 * cold:.0f} %, "
            f"and a tick takes {1e6 * seconds:,.1f} us more"
        )
    late = ", ".join(f"{1e3 * wake.gap_s:g} ms: {1e6 * wake.seconds:,.1f} us" for wake in machine.wake)
    show(f"the cold chain begins later after a gap of {late}")


def _line(name, figure):
    if name.endswith("bytes_per_s"):
        return name, f"{figure.value / 1e9:,.2f} GB/s", f"± {figure.spread / 1e9:,.2f}"
    return name, f"{1e6 * figure.value:,.2f} us", f"± {1e6 * figure.spread:,.2f}"
