"""What the clients share: prompts from a file, one request at a time to a running server, words of the command."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import slotwise


def parser(about: str | None, url: str) -> argparse.ArgumentParser:
    """The options that every client has; `about` is its docstring."""
    words = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--url", default=url, help="of the server [%(default)s]")
    words.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="text, a prompt a line")
    words.add_argument("-o", "--output", type=Path, required=True, metavar="T.parquet", help="the trace")
    words.add_argument("--max-new-tokens", type=int, default=128, help="of each answer [%(default)s]")
    words.add_argument("--n-experts", type=int, required=True, help="experts per layer, which no server says")
    words.add_argument("--row-bytes", type=int, help="bytes of one expert")
    words.add_argument("--model", help="its name")
    words.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for one answer [%(default)s]")
    return words


def prompts(path: Path) -> list[str]:
    """The lines of the file that are not blank."""
    found = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if not found:
        raise SystemExit(f"{path}: no prompts; a prompt is a line")
    return found


def post(url: str, path: str, body: dict[str, Any] | None, timeout: float) -> Any:
    """What the server answers, JSON where it is JSON, else text. Without an answer the program ends with one line."""
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url.rstrip("/") + path, data, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text, kind = answer.read(), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        said = error.read(300).decode("utf-8", "replace").strip()
        raise SystemExit(f"{request.full_url}: {error.code} {error.reason}: {said}") from None
    except OSError as error:
        raise SystemExit(f"{request.full_url}: no answer ({error}); is the server running?") from None
    return json.loads(text) if kind == "application/json" else text.decode("utf-8", "replace")


def hints(asked: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """What `slotwise.open_trace` is told beside the file."""
    return {"n_experts": asked.n_experts, "row_bytes": asked.row_bytes, "model": asked.model, **more}


def save(trace: slotwise.Trace, output: Path) -> None:
    """Writes the trace and says so."""
    trace.save(output)
    print(f"{output}: {trace!r}")
