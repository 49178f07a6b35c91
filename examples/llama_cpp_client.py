"""Router traces from a running llama-server of llama.cpp that prints its routing (README.md here says how).

    llama-server -m model.gguf -np 1 --no-warmup --log-file server.log
    python examples/llama_cpp_client.py --log server.log --prompts prompts.txt --n-experts 128 -o trace.parquet

llama-server has no answer with routing in it. With the debug callback of common/debug.cpp it prints the tensors
ffn_moe_topk into its log, which lies on this machine: what the log grows by during a prompt is the prompt's request.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import asking

import slotwise

QUIET_S = 0.5  # the log is written by a thread of its own: it is done when it has not grown for so long


def main() -> None:
    words = asking.parser(__doc__, "http://localhost:8080")
    words.add_argument("--log", type=Path, required=True, metavar="FILE", help="that the server writes")
    asked = words.parse_args()
    traces = []
    with tempfile.TemporaryDirectory() as folder:
        for i, prompt in enumerate(asking.prompts(asked.prompts)):
            before = asked.log.stat().st_size
            body = {"prompt": prompt, "n_predict": asked.max_new_tokens, "temperature": 0, "cache_prompt": False}
            asking.post(asked.url, "/completion", body, asked.timeout)
            path = Path(folder) / f"request-{i}.log"
            path.write_bytes(grown(asked.log, before))
            traces.append(slotwise.open_trace(path, "llama-callback", **asking.hints(asked)))
        asking.save(slotwise.merge(traces) if len(traces) > 1 else traces[0], asked.output)


def grown(log: Path, before: int) -> bytes:
    """What the log has more than before, once it is at rest."""
    size, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        if (now := log.stat().st_size) != size:
            size, since = now, time.monotonic()
        time.sleep(0.05)
    with log.open("rb") as file:
        file.seek(before)
        return file.read()


if __name__ == "__main__":
    main()
