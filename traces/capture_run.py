"""capture: loads a model, lets it generate from prompts or read a text, and records its routers on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from .capture import Capture
from .capture_rows import check_free
from .errors import BadTrace, CaptureFailed
from .importing import short
from .meta import check_whole
from .opening import open_trace

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")


def capture(
    model: str | Path,
    output: str | Path,
    *,
    prompts: str | Path | None = None,
    text: str | Path | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    batch: int = 1,
    window: int = 1024,
    chunk: int = 512,
    device: str = "cpu",
    dtype: str = "auto",
    revision: str | None = None,
    width: int | None = None,
    horizons: Sequence[int] = (1,),
    check: bool = False,
    force: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Write the trace `output` of a Hugging Face model, a folder or a hub id; returns what was recorded, as plain JSON.

    `prompts` is a file with a prompt a line, or `.jsonl` with `prompt` and perhaps `label`: `batch` of them at a time
    are continued by up to `max_new_tokens`, drawn from the whole distribution at `temperature` with `seed`, or greedily
    at temperature 0. `text` is a file that the model reads instead: windows of `window` tokens are a request each, fed
    in passes of `chunk` tokens over the cache; with chunk 1 they are decode steps. `Capture` has the other options.
    """
    if (prompts is None) == (text is None):
        raise BadTrace("a capture needs prompts to continue or a text to read, one of the two")
    for name, value in (("max_new_tokens", max_new_tokens), ("batch", batch), ("window", window), ("chunk", chunk)):
        check_whole("capture", name, value, 1, 2**31 - 1)
    if temperature != 0 and not 0.001 <= temperature < 1e6:
        raise BadTrace(f"temperature={temperature}; it must be 0 (greedy), or a number from 0.001 on")
    check_whole("capture", "seed", seed, 0, 2**63 - 1)
    if Path(output).resolve() in {Path(each).resolve() for each in (prompts, text) if each is not None}:
        raise BadTrace(f"{output} is what the model is to read; write the trace to another file")
    check_free(Path(output), force)  # before a large model is loaded
    requests = _texts(Path(prompts)) if prompts is not None else _text(Path(text or ""))
    tokenizer, loaded = _load(str(model), device, dtype, revision)
    encoded = [_encode(tokenizer, loaded, body, f"request {i}") for i, (body, _) in enumerate(requests)]
    labels = [label for _, label in requests]
    if text is not None:
        tokens, name = encoded[0], labels[0]
        encoded = [tokens[at : at + window] for at in range(0, len(tokens), window)]
        labels = [f"{name} {i}" for i in range(len(encoded))]
    _check_lengths(loaded, encoded, max_new_tokens if text is None else 0)
    given = Path(prompts if prompts is not None else text or "")
    how = f"max_new_tokens={max_new_tokens}, temperature={temperature}, seed={seed}, batch={batch}"
    how = how if text is None else f"read in windows of {window} tokens, passes of {chunk}"
    source = f"{given.name} (SHA-256 {sha256(given.read_bytes()).hexdigest()[:16]}), {how}"
    total = len(range(0, len(encoded), batch)) * max_new_tokens
    total = total if text is None else sum(len(range(0, len(tokens), chunk)) for tokens in encoded)

    def advance(rows: int) -> None:
        if progress:
            progress(min(capturing.n_steps, total), total, f"{capturing.n_tokens:,} tokens")

    name = Path(model).resolve().name if Path(model).is_dir() else None  # else the model says it
    options = {"width": width, "horizons": horizons, "check": check, "labels": labels, "source": source, "force": force}
    capturing = Capture(loaded, output, advance=advance, model_name=name, **options)
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(seed)
    began = time.perf_counter()
    with capturing, torch.inference_mode():
        if text is not None:
            _read(loaded, encoded, chunk)
        else:
            _generate(loaded, encoded, batch, max_new_tokens, temperature)
        seconds = time.perf_counter() - began
    trace = open_trace(output)
    names = (
        "model",
        "n_tokens",
        "n_steps",
        "n_requests",
        "n_layers",
        "n_experts",
        "top_k",
        "predicted_width",
        "sha256",
    )
    return {
        "output": str(output),
        **{name: getattr(trace, name) for name in names},
        "horizons": list(trace.horizons),
        "device": device,
        "seconds": seconds,
        "tokens_per_s": trace.n_tokens / seconds,
        "recall": capturing.recall,
    }


def _generate(model: Any, prompts: list[list[int]], batch: int, new: int, temperature: float) -> None:
    """Batches of prompts, padded on the left as generation wants it."""
    import torch  # pyright: ignore[reportMissingImports]

    pad = next((i for i in (model.generation_config.pad_token_id, model.config.pad_token_id) if i is not None), 0)
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    how = drawn if temperature else {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    for at in range(0, len(prompts), batch):
        some = prompts[at : at + batch]
        longest = max(map(len, some))
        tokens = torch.tensor([[pad] * (longest - len(each)) + each for each in some], device=model.device)
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in some], device=model.device)
        model.generate(tokens, attention_mask=mask, max_new_tokens=new, num_beams=1, pad_token_id=pad, **how)


def _read(model: Any, windows: list[list[int]], chunk: int) -> None:
    """The tokens as they are, over the model's own cache."""
    import torch  # pyright: ignore[reportMissingImports]

    for tokens in windows:
        cached = {}
        for at in range(0, len(tokens), chunk):
            given = torch.tensor([tokens[at : at + chunk]], device=model.device)
            out = model(given, use_cache=True, logits_to_keep=1, **cached)
            name = "cache" if "cache" in out else "past_key_values"
            cached = {name: out[name]}


# -- what goes in -----------------------------------------------------------------------------------------------------


def _load(model: str, device: str, dtype: str, revision: str | None) -> tuple[Any, Any]:
    """(tokenizer, model); or BadTrace with what is missing."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
        from transformers import AutoModelForCausalLM, AutoTokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BadTrace(
            f"capture needs torch and transformers ({short(' '.join(str(error).split()))}): "
            "pip install 'slotwise[capture]'"
        ) from None
    for name, value, known in (("device", device, DEVICES), ("dtype", dtype, DTYPES)):
        if value not in known:
            raise BadTrace(f"{name} {value!r}; known: {', '.join(known)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadTrace("device 'cuda': torch finds no GPU here; use cpu")
    if model.startswith(("/", "./", "../")) and not (Path(model) / "config.json").is_file():
        raise BadTrace(f"model {model!r}: no config.json there; name a folder of a Hugging Face model, or a hub id")
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
            loaded, info = AutoModelForCausalLM.from_pretrained(
                model, dtype=dtype, revision=revision, output_loading_info=True
            )
            loaded = loaded.to(device).eval()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise CaptureFailed(
            f"model {model!r} does not fit the memory of {device} ({short(' '.join(str(error).split()))}); use a "
            "smaller dtype, or slotwise.Capture around a model that you have spread over devices"
        ) from None
    except Exception as error:  # noqa: BLE001  # several libraries read these files, each with errors of its own
        raise BadTrace(
            f"model {model!r} cannot be loaded ({type(error).__name__}: {short(' '.join(str(error).split()))}); name a "
            "folder of a Hugging Face model, with config, weights and tokenizer, or a hub id"
        ) from None
    missing = sorted(set(info["missing_keys"]) - set(getattr(loaded, "all_tied_weights_keys", ())))
    if missing:
        raise BadTrace(
            f"model {model!r}: the weights lack {len(missing)} tensors that the config asks for, such as {missing[0]}; "
            "they would be drawn at random"
        )
    return tokenizer, loaded


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and notes of transformers in between ours."""
    from transformers.utils import logging  # pyright: ignore[reportMissingImports]

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _texts(path: Path) -> list[tuple[str, str]]:
    """(prompt, label) of each line that is not blank."""
    found = []
    for number, line in enumerate(_decoded(path).replace("\r\n", "\n").split("\n"), 1):
        if not line.strip():
            continue
        prompt, label = line, f"prompt {len(found)}"
        if path.suffix.lower() == ".jsonl":
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadTrace(f"{path} line {number}: not JSON ({error})") from None
            prompt = record.get("prompt") if isinstance(record, dict) else None
            label = record.get("label", label) if isinstance(record, dict) else None
            if not isinstance(prompt, str) or not prompt or not isinstance(label, str):
                raise BadTrace(
                    f'{path} line {number}: {short(record)}; a line is like {{"prompt": "Once", "label": "prose"}}'
                )
        if any("\ud800" <= letter <= "\udfff" for letter in prompt + label):
            raise BadTrace(f"{path} line {number}: half of a surrogate pair is no text")
        found.append((prompt, label))
    if not found:
        raise BadTrace(f"{path}: no prompts; write one a line")
    return found


def _text(path: Path) -> list[tuple[str, str]]:
    return [(_decoded(path), path.stem)]


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadTrace(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def _encode(tokenizer: Any, model: Any, body: str, what: str) -> list[int]:
    tokens = tokenizer(body)["input_ids"]
    size = model.get_input_embeddings().weight.shape[0]
    if not tokens:
        raise BadTrace(f"{what}: no tokens in {short(body)}; write some text, or see that the tokenizer is there")
    if max(tokens) >= size:
        raise BadTrace(f"{what}: token {max(tokens)}, but the model knows {size}; is the tokenizer that of the model?")
    return tokens


def _check_lengths(model: Any, requests: list[list[int]], new: int) -> None:
    most = getattr(model.config, "max_position_embeddings", None)
    longest = max(range(len(requests)), key=lambda i: len(requests[i]))
    if most and len(requests[longest]) + new > most:
        raise BadTrace(
            f"request {longest}: {len(requests[longest])} tokens and {new} new ones, but the model has "
            f"max_position_embeddings={most}; shorten it, or ask for fewer"
        )
