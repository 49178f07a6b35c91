"""What `slotwise trace info` prints for people: the facts of a trace as a few small tables."""

from collections.abc import Sequence
from math import log2

import click

from .screen import columns, show, wrapped

CURVE_ROWS = 8  # of the first-touch curve that are printed


def print_facts(facts: dict) -> None:
    """Prints the object that `Trace.describe` returns."""
    everything = facts["n_layers"] * facts["n_experts"]
    wrapped(f"{_safe(facts['name'])}  {_safe(facts['model'] or 'unnamed model')}")
    show(_facts(facts))
    _table(
        "first touch: how soon a run has used how many experts, all layers together",
        ("first tokens", "experts used", f"share of {everything:,}"), _first_touch(facts["first_touch"]),
    )  # fmt: skip
    layers = facts["layers"]
    names = ("layer", "seen", "top share", "entropy", "Gini", "overlap", "shuffled")
    keys = ("experts_seen", "top_share", "entropy_bits", "gini", "overlap_previous", "overlap_shuffled")
    values = [facts["model_layers"], *(layers[key] for key in keys)]
    _table("layers, by the model's own numbers", names, zip(*values, strict=True))
    for name, meaning in _meanings(facts).items():
        wrapped(f"{name}:\xa0{meaning}", "  ")
    for record in facts["predictions"]:
        _predictions(record, facts["model_layers"])


def _predictions(record: dict, layers: Sequence[int]) -> None:
    """The table by width and the one by layer of one horizon, the baselines beside what is recorded."""
    width, ahead = record["width"], f"predictions made {record['horizon']} layer{'s' * (record['horizon'] != 1)} ahead"
    all_of = {"recorded": record, **record["baselines"]}
    for by, key, first in (("width W", "W", range(1, width + 1)), (f"layer at W = {width}", "layer", layers)):
        names, values = (key,), [first]
        for measure in ("recall", "precision"):
            for who, found in all_of.items():
                names += (f"{measure}@{'W' if key == 'W' else width}" if who == "recorded" else who,)
                one = found[measure] if key == "W" else [by_width[-1] for by_width in found[f"{measure}_by_layer"]]
                values.append(one)
        _table(f"{ahead}, by {by}", names, zip(*values, strict=True))
    wrapped("recall@W: share of a token's experts that are among its first W predictions", "  ")
    wrapped("precision@W: share of the first W predictions that are right", "  ")
    wrapped("previous, frequency: the same if the experts of the token before had been predicted, or those chosen most "
            "often so far", "  ")  # fmt: skip


def _meanings(facts: dict) -> dict[str, str]:
    """What the columns of the table of layers say, 0 to 1 unless told otherwise."""
    return {
        "seen": f"experts chosen at least once, of {facts['n_experts']}",
        "top share": "share of all choices that fell on the expert chosen most",
        "entropy": f"of the choices, in bits; {log2(facts['n_experts']):.2f} if all experts were chosen alike",
        "Gini": "0 if all experts are chosen alike, near 1 if a few are chosen always",
        "overlap": "share of a token's experts that the token before it chose too: what a cache lives on",
        "shuffled": "the same with the tokens in random order; overlap above it comes from their order, not from skew",
    }


def _facts(facts: dict):
    from rich.table import Table
    from rich.text import Text

    cycle, overlap, phases = facts["token_cycle_bytes"], facts["overlap"], facts["phases"]
    reads = f"{facts['n_layers']} x {facts['top_k']} rows"
    rows = {
        "shape": f"{facts['n_layers']} MoE layers x {facts['n_experts']} experts, top {facts['top_k']}",
        "tokens": f"{facts['n_tokens']:,} in {facts['n_steps']:,} steps of {facts['n_requests']:,} "
        f"request{'s' * (facts['n_requests'] != 1)}",
        **{
            name: f"{p['tokens']:,} tokens in {p['steps']:,} step{'s' * (p['steps'] != 1)}, "
            f"{p['largest_step']:,} in the largest"
            for name, p in phases.items()
            if p["steps"]
        },
        "token cycle T": f"what one token reads: {reads}, "
        + ("row size unknown" if cycle is None else f"{cycle:,} bytes ({cycle / 2**20:,.1f} MiB)"),
        "overlap": f"a token shares {_cell(overlap['previous'])} of its experts with the token before; "
        f"{_cell(overlap['uniform'])} if drawn evenly, {_cell(overlap['shuffled'])} in shuffled order "
        f"(seed {overlap['seed']})",
        "recorded": ", ".join(
            ["experts", *["weights"] * facts["weights"]]
            + [
                f"{p['width']} predictions made {p['horizon']} layer{'s' * (p['horizon'] > 1)} ahead"
                for p in facts["predictions"]
            ]
        ),
        "predictor": (facts["predictor"] or {}).get("kind"),
        **{name: facts[name] for name in ("router", "revision", "captured_by", "captured_at", "source", "licence")},
        "labels": ", ".join(dict.fromkeys(str(r["label"]) for r in facts["requests"] if r.get("label"))),
        "sha256": facts["sha256"],
    }
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            table.add_row(name.replace("_", " "), Text(_safe(_shortened(str(value)))))
    return table


def _first_touch(curve: dict) -> list[tuple]:
    n = len(curve["tokens"])
    chosen = sorted({round(i * (n - 1) / (CURVE_ROWS - 1)) for i in range(CURVE_ROWS)})
    return [(curve["tokens"][i], curve["experts"][i], curve["experts"][i] / curve["of"]) for i in chosen]


def _table(title: str, names: Sequence[str], rows) -> None:
    click.echo()
    wrapped(title)
    show(columns(names, [[_cell(value) for value in row] for row in rows]))


def _cell(value) -> str:
    """A rate with three decimals, a count with separators, what is unknown as a dash."""
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


def _shortened(text: str) -> str:
    return text if len(text) <= 240 else text[:237] + "..."


def _safe(text: str) -> str:
    """Text from a file, with nothing that the terminal would take as an instruction."""
    return "".join(c if c.isprintable() else "?" for c in text)
