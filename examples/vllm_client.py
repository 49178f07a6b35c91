"""Router traces from a running vLLM server, 0.22 or newer.

    vllm serve MODEL --enable-return-routed-experts
    python examples/vllm_client.py --prompts prompts.txt --n-experts 128 --model MODEL -o trace.parquet

The server adds to each choice of an answer `routed_experts`: base64 of a .npy file [tokens - 1, layers, top-k]
(CompletionResponseChoice in vllm/entrypoints/openai/completion/protocol.py). Prompts are asked one by one; each is a
request of the trace, its prompt one step. vLLM 0.21 answers with nested lists under other keys, which are not read.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import asking

import slotwise


def main() -> None:
    words = asking.parser(__doc__, "http://localhost:8000")
    words.add_argument("--served-model", help="name that the server gives the model [that of --model]")
    asked = words.parse_args()
    if not (asked.served_model or asked.model):
        words.error("--model or --served-model: the server wants the model's name")
    answers = []
    for prompt in asking.prompts(asked.prompts):
        body = {
            "model": asked.served_model or asked.model,
            "prompt": prompt,
            "max_tokens": asked.max_new_tokens,
            "temperature": 0,
        }
        answers.append(asking.post(asked.url, "/v1/completions", body, asked.timeout))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{asked.output.stem}.json"
        path.write_text(json.dumps(answers))
        asking.save(slotwise.open_trace(path, "vllm", **asking.hints(asked)), asked.output)


if __name__ == "__main__":
    main()
