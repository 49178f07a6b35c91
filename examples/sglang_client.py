"""Router traces from a running SGLang server, in one of two ways.

    python -m sglang.launch_server --model-path MODEL --enable-return-routed-experts
    python examples/sglang_client.py --prompts prompts.txt --n-experts 128 --top-k 8 --model MODEL -o trace.parquet

Each answer of /generate carries the ids of its tokens (GenerateReqInput.return_routed_experts in
python/sglang/srt/managers/io_struct.py). Prompts are asked one by one; each is a request, its prompt one step.

    SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR=/tmp/recorder python -m sglang.launch_server --model-path MODEL \\
        --expert-distribution-recorder-mode per_token --disable-overlap-schedule --disable-cuda-graph
    python examples/sglang_client.py --recorder /tmp/recorder --prompts prompts.txt --n-experts 128 -o trace.parquet

The recorder writes what each forward pass really held, batches as they were served, into a file of the server
(python/sglang/srt/eplb/expert_distribution.py); prompts are asked `--at-once` at a time. The folder must be the
server's, and reading the file needs torch.
"""

from __future__ import annotations

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asking

import slotwise

WRITTEN_S = 60.0  # the server answers before all ranks have written


def main() -> None:
    words = asking.parser(__doc__, "http://localhost:30000")
    words.add_argument("--top-k", type=int, help="experts per token, which the answers do not say")
    words.add_argument("--recorder", type=Path, metavar="FOLDER", help="use the recorder, which writes there")
    words.add_argument("--at-once", type=int, default=1, help="prompts in flight, with --recorder [%(default)s]")
    asked = words.parse_args()
    prompts = asking.prompts(asked.prompts)
    if asked.recorder:
        path = recorded(asked, prompts)
        asking.save(slotwise.open_trace(path, "sglang", **asking.hints(asked, top_k=asked.top_k)), asked.output)
        return
    if not asked.top_k:
        words.error("--top-k: the answers do not say how many experts a token has")
    answers = [generate(asked, prompt, return_routed_experts=True) for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{asked.output.stem}.json"
        path.write_text(json.dumps(answers))
        asking.save(slotwise.open_trace(path, "sglang-r3", **asking.hints(asked, top_k=asked.top_k)), asked.output)


def generate(asked: Any, prompt: str, **more: Any) -> Any:
    sampling = {"max_new_tokens": asked.max_new_tokens, "temperature": 0}
    return asking.post(asked.url, "/generate", {"text": prompt, "sampling_params": sampling, **more}, asked.timeout)


def recorded(asked: Any, prompts: list[str]) -> Path:
    """The file that the first rank wrote about these prompts."""
    before = set(asked.recorder.glob("expert_distribution_recorder_*.pt"))
    asking.post(asked.url, "/start_expert_distribution_record", None, asked.timeout)
    with ThreadPoolExecutor(asked.at_once) as threads:
        list(threads.map(lambda prompt: generate(asked, prompt), prompts))
    for call in ("stop", "dump"):
        asking.post(asked.url, f"/{call}_expert_distribution_record", None, asked.timeout)
    until = time.monotonic() + WRITTEN_S
    while time.monotonic() < until:
        if new := sorted(set(asked.recorder.glob("expert_distribution_recorder_*_0.pt")) - before):
            return new[-1]
        time.sleep(0.1)
    raise SystemExit(
        f"{asked.recorder}: no new expert_distribution_recorder_*_0.pt after {WRITTEN_S:.0f} s; is it the server's "
        "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR, and is the mode per_token?"
    )


if __name__ == "__main__":
    main()
