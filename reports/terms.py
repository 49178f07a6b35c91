"""Words of the page: its headings, where its numbers come from, and what the terms mean."""

from typing import NamedTuple

TERMS = {
    "expert, row": "An expert is one FFN of one MoE layer; its row is the bytes of its weights.",
    "slot, pool": "A slot is room in VRAM for one row; a pool is the slots under one policy, of one layer or of all.",
    "step, tick": "A step is one forward pass of the model, a tick one layer of it. Time is counted in these, never in "
    "seconds.",
    "demand, hit, miss": "A demand is a distinct expert that the router chose at a tick, over all tokens of the step. "
    "It is a hit if resident when the tick began, else a miss.",
    "load": "A copy of one row into a slot: for a demand, or speculative, for a prediction.",
    "look-ahead, width": "Predictions of what the next layer will demand. The width says how many per token are "
    "considered; at 0 there is no look-ahead.",
    "used, used late, wasted": "A speculative load is used if demanded before it leaves, late if it was still on its "
    "way then, wasted if it leaves unused.",
    "dropped, redundant, invalid": "A prediction that was refused a slot; one already resident or on its way; one "
    "repeated or out of range.",
    "guard, gate": "A guard may keep a victim from a prediction. A gate admits an expert only after several misses.",
    "bound": "opt, which knows the future: no policy that starts empty, keeps to its slots and never "
    "prefetches hits more over the whole run. Of one phase it is no bound.",
    "policy failure, working-set failure": "Misses that another choice of victims could avoid, and those that the "
    "bound has too. Mostly the one or the other from two thirds of the misses on, else both.",
    "token cycle, T": "The rows that one token reads over all layers, top-k on each. A smaller pool cannot hold them.",
    "contract": "event: a tick is atomic, none of its demand is evicted in it. sequential: one expert after the other. "
    "Numbers compare within one contract only.",
    "points; fewer misses": "Points are a difference of hit rates in percentage points; fewer misses is relative to "
    "the misses of the other.",
    "nearly the same": "A hit rate at most 2 points below the winner's, for at most half of its loads.",
    "–": "No value: nothing to divide by, or not recorded.",
}
PARTS = {  # key of the figures -> heading
    "capacity": "Hit rate and what it costs",
    "lookahead": "Look-ahead",
    "layers": "Layers",
    "warmup": "Warm-up",
    "phases": "Prefill and decode",
}
MEASURED_TERMS = {
    "hot chain, cold chain": "Computing experts that hit, on the device, and experts that miss, on the CPU. With "
    "overlap they work at the same time, without it one after the other; the bytes of the output are the same.",
    "tokens/s, interval": "Tokens over the seconds of all steps: the median of the runs, and the range of all of them. "
    "Runs of both sides take turns, so what drifts meets both.",
    "overlap efficiency": "(serial - overlapped) / (serial - the longer chain), summed over the ticks that had work "
    "for both chains: 1 hides the shorter chain completely, 0 hides nothing, below 0 overlap costs time.",
    "ceiling": "What copies and reads reached at best when nothing else was asked of them, before or after the runs, "
    "in the same process.",
    "awaited copies": "Time in which the hot chain waited for a row that the plan counts as resident, but whose copy "
    "had not arrived.",
    "timed run": "One more run of each side that looks at every tick: it says where the time went, not how fast it is.",
}
MEASURED_PARTS = {
    "speed": "Speed, and where the time went",
    "bandwidth": "Bandwidths beside their ceilings",
    "drops": "Predictions",
    "timeline": "Timeline",
}


class Head(NamedTuple):
    """A sentence on top of a page about where numbers come from: for the page, and for Markdown."""

    kind: str  # the badge
    page: str
    noun: str
    markdown: str


HEADS = {  # by what a chapter says it holds
    "simulated": Head(
        "simulated",
        "Replayed from router traces: what each policy would have hit, missed and moved. Nothing was timed.",
        "All numbers",
        "are **SIMULATED**: replayed from router traces, not measured.",
    ),
    "measured": Head(
        "measured",
        "Carried out by the executor: real copies and real computation, timed on the machine that the section names.",
        "All numbers",
        "are **MEASURED**: carried out by the executor on the machine that each section names.",
    ),
    "priced simulated": Head(
        "simulated",
        "Tokens per second: the same replays, walked through with the times of a machine that was measured.",
        "Tokens per second",
        "are **SIMULATED**: priced with the times of a machine that was measured.",
    ),
    "priced estimated": Head(
        "estimated",
        "Tokens per second: the same replays, walked through with the times of a machine that was not measured with "
        "rows of this size.",
        "Tokens per second",
        "are **ESTIMATED**: priced with the times of a machine that was not measured with rows of this size.",
    ),
    "machine measured": Head(
        "measured",
        "The figures of a machine that `slotwise calibrate` measured: what replays are priced with.",
        "All figures",
        "are **MEASURED**: by `slotwise calibrate`, on the machine that each section names.",
    ),
    "machine estimated": Head(
        "estimated",
        "The figures of a machine from datasheets and presets: what replays are priced with. Nothing was measured.",
        "All figures",
        "are **ESTIMATED**: from datasheets and presets, not measured.",
    ),
    "validation": Head(
        "predicted and measured",
        "Prices of replays beside runs of the same plans by the executor; each figure says which of the two it is.",
        "Figures",
        "are **SIMULATED** or **ESTIMATED** where they are predicted, and **MEASURED** where the executor carried the "
        "same plans out.",
    ),
}
PRICED_TERMS = {
    "price": "What a replay takes on a machine: its ticks are walked through with the times of the machine file. "
    "Intervals are 95 %, from drawing requests (or stretches of steps) of the trace again.",
    "gain": "Tokens per second over those of the same configuration without look-ahead, step by step.",
    "ceiling (oracle)": "The same configuration with a predictor that is never wrong, at the same width.",
    "precision, break-even": "Of the speculative loads, the share that was demanded before it left; and the share from "
    "which on look-ahead pays on this machine. Above 100 % no predictor pays.",
    "awaited hit": "A hit by the plan whose copy had not landed when its tick came: the tick waits for it.",
    "busy": "The share of the time in which link, GPU, CPU (the cold chain) or host work.",
    "TPOT": "Time per output token over decode steps: a step's time over the tokens that it gives.",
}
MACHINE_TERMS = {
    "expert, row": TERMS["expert, row"],
    "hot chain, cold chain": "Computing experts that hit, on the device, and experts that miss, on the CPU.",
    "demand load, speculative load": "A copy of a row into VRAM because it was demanded, or because it was predicted.",
    "spread": "The standard deviation of single measurements; of an estimate, what such measurements usually have.",
    "tokens, tokens a row": "Tokens of a step; of these, how many each row serves, as in verify steps and prefill.",
    "beside each other": "The share of its speed alone that one keeps while the other works.",
}
VALIDATION_TERMS = {
    "block": "Every configuration once, in random order, and the first one, the sentinel, twice more.",
    "noise floor": "By how much identical runs of a block differ.",
    "bound by": "The resource that was busiest when the configuration was timed tick by tick.",
    "the line": "Seconds a token = a + b · misses + c · loads, fitted to the very measurements: what prices must beat.",
    "pair": "Two configurations that differ in nothing but the policy.",
    "Kendall's tau": "Pairs of configurations that prediction and measurement order alike, less those that they do "
    "not, as a share of all: 1 is the same order.",
    "passed, failed, inconclusive": "By fixed limits for errors and pairs; inconclusive where the machine was too "
    "restless to tell, or was not measured with such rows.",
}
TERMS_OF = {  # terms beyond TERMS, by what a chapter holds
    "measured": MEASURED_TERMS,
    "priced simulated": PRICED_TERMS,
    "priced estimated": PRICED_TERMS,
    "machine measured": MACHINE_TERMS,
    "machine estimated": MACHINE_TERMS,
    "validation": VALIDATION_TERMS,
}
MACHINE_PARTS = {
    "chains": "Hot and cold chain",
    "copies": "Copies",
    "wake": "Waking up",
    "contention": "Beside each other",
}
VALIDATION_PARTS = {
    "against": "Predicted against measured",
    "pairs": "Policies against each other",
    "terms": "Where predictions are off",
    "blocks": "What the machine did meanwhile",
}
OPTIONS_ARE = {  # by what a chapter is about
    "sweep": "Every option of the rows in this section, with its value, or its values where they differ.",
    "run": "Every option of the rows in this section, with its value, or its values where they differ.",
    "machine": "What the measurement was asked for.",
    "validation": "Options beyond the grid.",
}
