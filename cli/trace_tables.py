"""What `slotwise trace info` prints for people: the facts of a trace as a few small tables."""

from collections.abc import Sequence
from math import log2

CURVE_ROWS = 8  # of the first-touch curve that are printed


def print_facts(facts: dict) -> None:
    """Prints the object that `Trace.describe` returns."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100
    console.print(f"[bold]{_safe(facts['name'])}[/]  {_safe(facts['model'] or 'unnamed model')}", soft_wrap=True)
    console.print(_facts(facts))
    _show(console, "first touch", ("tokens", "distinct experts", "share"), _first_touch(facts["first_touch"]))
    layers = facts["layers"]
    names = ("layer", "seen", "top share", "entropy", "Gini", "overlap", "shuffled")
    keys = ("experts_seen", "top_share", "entropy_bits", "gini", "overlap_previous", "overlap_shuffled")
    columns = [facts["model_layers"], *(layers[key] for key in keys)]
    for record in facts["predictions"]:
        ahead = f" h{record['horizon']}" if record["horizon"] > 1 else ""
        names += (f"recall@{record['width']}{ahead}",)
        columns.append([by_width[-1] for by_width in record["recall_by_layer"]])
    title = f"layers (entropy in bits, of {log2(facts['n_experts']):.2f})"
    _show(console, title, names, zip(*columns, strict=True))
    for record in facts["predictions"]:
        rows = zip(range(1, record["width"] + 1), record["recall"], record["precision"], strict=True)
        title = f"predictions {record['horizon']} layer{'s' * (record['horizon'] > 1)} ahead"
        _show(console, title, ("W", "recall@W", "precision@W"), rows)


def _facts(facts: dict):
    from rich.table import Table

    cycle, overlap, phases = facts["token_cycle_bytes"], facts["overlap"], facts["phases"]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "shape": f"{facts['n_layers']} MoE layers x {facts['n_experts']} experts, top {facts['top_k']}",
        "tokens": f"{facts['n_tokens']:,} in {facts['n_steps']:,} steps of {facts['n_requests']:,} "
        f"request{'s' * (facts['n_requests'] != 1)}",
        **{
            name: f"{p['tokens']:,} tokens in {p['steps']:,} steps, {p['largest_step']:,} in the largest"
            for name, p in phases.items()
            if p["steps"]
        },
        "token cycle T": "row size unknown" if cycle is None else f"{cycle:,} bytes ({cycle / 2**20:,.1f} MiB)",
        "overlap": f"{_cell(overlap['previous'])} with the token before; {_cell(overlap['uniform'])} if even, "
        f"{_cell(overlap['shuffled'])} shuffled (seed {overlap['seed']})",
        "recorded": ", ".join(
            ["experts", *["weights"] * facts["weights"]]
            + [f"{p['width']} predictions {p['horizon']} ahead" for p in facts["predictions"]]
        ),
        "predictor": (facts["predictor"] or {}).get("kind"),
        **{name: facts[name] for name in ("router", "revision", "captured_by", "captured_at", "source", "licence")},
        "labels": ", ".join(dict.fromkeys(str(r["label"]) for r in facts["requests"] if r.get("label"))),
        "sha256": facts["sha256"],
    }
    for name, value in rows.items():
        if value:
            table.add_row(name.replace("_", " "), _safe(_shortened(str(value))))
    return table


def _first_touch(curve: dict) -> list[tuple]:
    n = len(curve["tokens"])
    chosen = sorted({round(i * (n - 1) / (CURVE_ROWS - 1)) for i in range(CURVE_ROWS)})
    return [(curve["tokens"][i], curve["experts"][i], curve["experts"][i] / curve["of"]) for i in chosen]


def _show(console, title: str, names: Sequence[str], rows) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(_cell, row))
    console.print(f"\n[bold]{title}[/]", table, sep="\n")


def _cell(value) -> str:
    """A rate with three decimals, a count with separators, what is unknown as a dash."""
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


def _shortened(text: str) -> str:
    return text if len(text) <= 240 else text[:237] + "..."


def _safe(text: str) -> str:
    """Text from a file, with nothing that the terminal or rich would take as an instruction."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "?" for c in text))
