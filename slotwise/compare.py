"""From traces to a report in one call: a sweep over a grid with sensible defaults, then a page on what it found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .callable_file import callable_as_its_function

if TYPE_CHECKING:
    from slotwise.traces import Trace

Progress = Callable[[int, int, str], None]
RESULTS, QUESTION = "R.parquet", "compare.json"
POLICIES = (
    "lru",  # what most engines ship: the others are held against it
    "lru+gate",  # loads a miss only when it recurs: most of the hits for a fraction of the loads
    "lfu",  # counts for ever: shows what ageing is worth
    "lfu(half_life=16)",
    "lfru",
    "lfru(half_life=16)",
    "lfru+guard",  # a guard vets look-ahead, so these two are run at widths above 0 only
    "lfru(half_life=16)+guard",
    "opt",  # the bound. Left out: fifo and random, which nobody runs who can see a hit, and belady, which bounds less
)
SLOTS = ("6.25%", "12.5%", "18.75%", "25%", "37.5%", "50%", "75%", "100%")  # closer where curves bend
ALWAYS = ("lru", "opt")  # at width 0, whatever is named: without a baseline and a bound a hit rate says little
WIDTH = 4  # half a top-8: few predictions, the likeliest


def compare(
    traces: Iterable[Trace | Path | str] | Trace | Path | str,
    out_dir: Path | str,
    *,
    policies: Iterable[str] | str | None = None,
    slots: Iterable[str | int] | str | int | None = None,
    vram: Iterable[str | int] | str | int | None = None,
    widths: Iterable[int] | int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    skipped: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Path]:
    """Replays every policy on every trace at every size and width, and writes a report on it into `out_dir`.

    The result rows stay there as R.parquet. After an interruption the same call goes on where it stopped; a call that
    asks something else is refused unless `force` is set.

    Args:
        traces: Trace objects, files in any format, or "sample".
        policies: spellings, by default POLICIES. Bounds run at width 0 alone, guarded policies above it alone if their
            plain form is there too. `lru` and the bound `opt` are added at width 0 if they are not named.
        slots: counts, shares of the experts or ranges, by default SLOTS; or `vram`: budgets such as "8GiB".
        widths: by default 0, and 4 where the trace has predictions or a predictor is named.
        force: put the report into a folder that holds other files, which stay, or another report, which is replaced.
        progress: is called with (done, total, what).
        skipped: is told why a combination was left out.
        options: contract, scope, predictor, row_bytes, workers and whatever else `slotwise.sweep` takes; with `machine`
            the report has tokens per second, too.

    Returns:
        The files of the report, the page first.
    """
    from slotwise.policies import parse_policy
    from slotwise.replay import list_sizes, sweep
    from slotwise.replay.lock import held
    from slotwise.replay.pricing import Pricing
    from slotwise.reports import check_folder, write_report
    from slotwise.traces import Trace, open_trace

    pricing = Pricing.taken_from(options)
    opened = [trace if isinstance(trace, Trace) else open_trace(trace) for trace in _each(traces)]
    spelt = [str(parse_policy(policy)) for policy in _each(policies or POLICIES)]
    sizes: dict[str, Any] = (
        {"vram": _each(vram)} if vram else {"slots": _each(slots if isinstance(slots, int) else slots or SLOTS)}
    )
    asked = None if widths is None else sorted(set(_each(widths)))
    question = {
        "traces": [trace.content_sha256 for trace in opened],
        "policies": spelt,
        "widths": asked,
        **sizes,
        **options,
        **(pricing.recorded() if pricing else {}),
    }
    question.pop("workers", None)
    question = json.loads(json.dumps(question, default=str))  # as it comes back from the file
    names = [trace.name for trace in opened]
    if pricing:
        options |= pricing.asked()

    grid = [(trace, width, names) for trace in opened for width, names in _grid(trace, spelt, asked, options)]
    predicting = any(width for _, width, _ in grid)
    overall = _Overall(progress, sum(len(names) for _, _, names in grid), list_sizes(**sizes))
    out_dir = Path(out_dir)
    results = out_dir / RESULTS
    lock = results.with_name(RESULTS + ".lock")
    ours = [results, results.with_name(RESULTS + ".part"), out_dir / QUESTION, lock]
    if out_dir.is_dir():  # a glob in a name that no folder can have raises
        ours += out_dir.glob(RESULTS + "*.tmp")  # what a killed sweep leaves
    check_folder(out_dir, ours, force=force)
    new_folder = not out_dir.exists()
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        with held(lock, f"another comparison is writing in {out_dir}; wait for it, or name another folder"):
            _begin(question, names, ours, force=force)
            try:
                for trace, width, policies_of in grid:
                    overall.begin(policies_of)
                    how: dict[str, Any] = options if width or not predicting else options | {"predictor": "none"}
                    sweep(
                        [trace], policies_of, widths=[width], out=results, progress=overall, skipped=skipped, **sizes,
                        **how,
                    )  # fmt: skip
            except BaseException:
                if not any(path.exists() for path in ours[:2]):  # no row to go on with, so nothing is left behind
                    ours[2].unlink()
                raise
            return write_report([results], out_dir, keep=ours, force=force, progress=overall.end)
    except BaseException:
        if new_folder and not any(out_dir.iterdir()):
            out_dir.rmdir()
        raise


class _Overall:
    """The progress of several sweeps as that of one: what a sweep need not run counts as done."""

    def __init__(self, progress: Progress | None, n_policies: int, sizes: list[Any]):
        self.progress, self.per_policy = progress, len(sizes)
        self.total, self.before, self.upcoming = n_policies * len(sizes), 0, 0

    def begin(self, names: list[str]) -> None:
        self.before += self.upcoming
        self.upcoming = len(names) * self.per_policy

    def __call__(self, done: int, total: int, what: str) -> None:
        if self.progress:
            self.progress(self.before + self.upcoming - total + done, self.total, what)

    def end(self, what: str) -> None:
        if self.progress:
            self.progress(self.total, self.total, what)


def _each(one_or_more: Any) -> list[Any]:
    """A single trace, policy, size or width is a list of one; text is not a list of letters."""
    return (
        list(one_or_more) if isinstance(one_or_more, Iterable) and not isinstance(one_or_more, str) else [one_or_more]
    )


def written(value: float | None, unit: str) -> str:
    """A number of the report's summary as the report itself writes it; `unit` is '%', 'points', 'B' or ''."""
    from slotwise.reports.metrics import written

    return written(value, unit)


def _grid(
    trace: Trace, policies: list[str], widths: list[int] | None, options: dict
) -> Iterator[tuple[int, list[str]]]:
    """(width, policies) without the combinations that could say nothing new."""
    from slotwise.reports.sections import is_bound, without_guard

    if widths is None:
        named = options.get("predictor", "trace") != "trace"
        widths = sorted({0, WIDTH if named else min(WIDTH, trace.predicted_width)})
    for width in sorted({0, *widths}):
        if width:
            names = [policy for policy in policies if not is_bound(policy)]
        else:
            plain = [policy for policy in policies if without_guard(policy) not in set(policies) - {policy}]
            names = [*(plain if 0 in widths else []), *(policy for policy in ALWAYS if policy not in policies)]
            names += [] if 0 in widths else [policy for policy in policies if is_bound(policy)]
        if names:
            yield width, names


def _begin(question: dict[str, Any], names: list[str], ours: list[Path], *, force: bool) -> None:
    """Looks at what is in the folder. What answers another question is refused, or with `force` cleared away."""
    from slotwise.replay.lock import held
    from slotwise.reports import BadResult, earlier_report

    results, part, note = ours[:3]
    out_dir = note.parent
    if results.exists() and not note.exists():
        raise BadResult(
            f"{results}: was not written by `slotwise compare`; name another folder, or use `slotwise report`"
        )
    if note.exists() and not note.is_file():
        raise BadResult(f"{note}: is not a file, so `slotwise compare` did not write it; name another folder")
    there = _noted(note)
    of_names = there.pop("names", None) or ["another trace"]
    report = earlier_report(out_dir)
    answered = report or results.exists() or part.exists()
    if answered and there != question:
        if not force:
            here = _difference(there, question, of_names, names)
            of = f"of {', '.join(of_names)}" if there else f"whose question cannot be read from {QUESTION}"
            what = f"a comparison {of}" if note.exists() else f"a report on {', '.join(report)}"
            raise BadResult(
                f"{out_dir}: holds {what}{here}; name another folder, or replace what is there with --force"
            )
        with held(part, f"a sweep is writing {results}; wait for it, or name another folder") as journal:
            results.unlink(missing_ok=True)
            journal.truncate(0)
    draft = note.with_name(f"{RESULTS}.{QUESTION}.tmp")  # among `ours` if a kill leaves it
    draft.write_text(json.dumps({"names": names, **question}, indent=1))
    draft.replace(note)


def _noted(note: Path) -> dict[str, Any]:
    """The question that an earlier `compare` wrote down; {} if there is none that can be read."""
    try:
        found = json.loads(note.read_bytes()) if note.exists() else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _difference(there: dict[str, Any], here: dict[str, Any], of_names: list[str], names: list[str]) -> str:
    """What sets the two questions apart, in the words of the first thing that differs."""
    if not there:
        return ""
    if there.get("traces") != here["traces"]:
        return f", and you ask about {', '.join(names)}" if of_names != names else " with other contents"
    name = next(name for name in [*here, *there] if there.get(name) != here.get(name))
    was, now = (
        "unset" if of.get(name) is None else ", ".join(map(str, _each(of[name]))) or "none" for of in (there, here)
    )
    return f" with {name} {was}, and you ask for {name} {now}"


callable_as_its_function(__name__)
