"""The clients of `examples/` against local servers that answer in the schema of each engine: never an engine itself."""

import base64
import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from conftest import ROOT, run
from test_formats_llama_callback import log
from trace_cases import whole

from slotwise.traces import open_trace

# Three layers, the first of them dense; top 2 of 4. Of each prompt: its rows, of which the first ones are the prompt's.
PROMPTS = {"Tell me more.": ([[0, 1], [1, 2], [3, 0], [2, 3]], 3), "Why?": ([[2, 1], [0, 3]], 1)}


def routed(prompt) -> np.ndarray:
    """`[rows, layers, k]`."""
    rows = np.array(PROMPTS[prompt][0])
    return np.stack([rows * 0, rows, 3 - rows], axis=1)


class Server(ThreadingHTTPServer):
    """Answers POST by `answer(path, body)`: (content type, bytes)."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                text = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(text) if text else None
                self.server.asked.append((self.path, body))
                kind, data = self.server.answer(self.path, body) or ("", b"no such call")
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind or "text/plain")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words):
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


def as_json(value):
    return "application/json", json.dumps(value).encode()


def client(name, server, folder, *words, code=0):
    (folder / "prompts.txt").write_text("\n\n".join(PROMPTS) + "\n")
    common = ("--url", getattr(server, "url", server), "--prompts", folder / "prompts.txt", "-o", folder / "t.parquet")
    return run(sys.executable, ROOT / "examples" / f"{name}.py", *common, "--n-experts", "4", "--max-new-tokens", "2",
               *words, code=code)  # fmt: skip


def assert_is_what_was_routed(folder):
    trace = open_trace(folder / "t.parquet")
    found = whole(trace)
    both = np.concatenate([routed(prompt) for prompt in PROMPTS])
    assert np.array_equal(found["experts"], both[:, 1:].transpose(1, 0, 2))
    assert found["row_request"].tolist() == [0] * 4 + [1] * 2
    assert (trace.n_experts, trace.meta.model_layers) == (4, (1, 2))
    return found


def vllm(path, body):
    """vLLM 0.22, CompletionResponse of vllm/entrypoints/openai/completion/protocol.py."""
    if path != "/v1/completions" or set(body) != {"model", "prompt", "max_tokens", "temperature"}:
        return None
    ids, prompt = routed(body["prompt"]), PROMPTS[body["prompt"]][1]
    out = io.BytesIO()
    np.save(out, ids.astype(np.uint8))
    generated = len(ids) + 1 - prompt
    choice = {
        "index": 0, "text": " x", "logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": None,
        "prompt_logprobs": None, "prompt_token_ids": None,
        "routed_experts": base64.b64encode(out.getvalue()).decode("ascii"),
    }  # fmt: skip
    usage = {"prompt_tokens": prompt, "total_tokens": len(ids) + 1, "completion_tokens": generated,
             "prompt_tokens_details": None}  # fmt: skip
    return as_json({
        "id": "cmpl-0f", "object": "text_completion", "created": 1764500000, "model": body["model"],
        "choices": [choice], "service_tier": None, "system_fingerprint": None, "usage": usage,
        "kv_transfer_params": None,
    })  # fmt: skip


def test_the_client_of_vllm_writes_what_the_server_routed(tmp_path):
    with Server(vllm) as server:
        done = client("vllm_client", server, tmp_path, "--model", "m")
    assert [body["prompt"] for _, body in server.asked] == list(PROMPTS)
    assert {(body["model"], body["max_tokens"]) for _, body in server.asked} == {("m", 2)}
    found = assert_is_what_was_routed(tmp_path)
    assert found["starts"].tolist() == [0, 3, 4, 5, 6]
    assert found["phase"].tolist() == [0, 1, 0, 1]
    assert done.stdout.startswith(f"{tmp_path / 't.parquet'}: <Trace t: m, 6 tokens x 2 layers, top 2 of 4")


def sglang(path, body):
    """SGLang, GenerateReqInput of managers/io_struct.py and meta_info of managers/tokenizer_manager.py."""
    if path != "/generate" or body.get("return_routed_experts") is not True:
        return None
    ids, prompt = routed(body["text"]), PROMPTS[body["text"]][1]
    return as_json({
        "text": " x",
        "output_ids": [1] * (len(ids) + 1 - prompt),
        "meta_info": {
            "id": body["text"], "finish_reason": {"type": "length", "length": 2}, "prompt_tokens": prompt,
            "weight_version": "default", "total_retractions": 0, "completion_tokens": len(ids) + 1 - prompt,
            "cached_tokens": 0, "e2e_latency": 0.01,
            "routed_experts": base64.b64encode(ids.astype("<i4").tobytes()).decode(),
        },
    })  # fmt: skip


def test_the_client_of_sglang_writes_what_the_server_routed(tmp_path):
    with Server(sglang) as server:
        client("sglang_client", server, tmp_path, "--top-k", "2")
        assert "--top-k: the answers do not say" in client("sglang_client", server, tmp_path, code=2).stderr
    assert server.asked[0][1]["sampling_params"] == {"max_new_tokens": 2, "temperature": 0}
    assert assert_is_what_was_routed(tmp_path)["starts"].tolist() == [0, 3, 4, 5, 6]
    labels = [request["label"] for request in open_trace(tmp_path / "t.parquet").meta.requests]
    assert labels == list(PROMPTS)


class Recorder:
    """SGLang's recorder, mode per_token: _DetailAccumulator of eplb/expert_distribution.py."""

    def __init__(self, folder, torch):
        self.folder, self.torch, self.passes, self.on = folder, torch, [], False

    def __call__(self, path, body):
        text = "text/plain; charset=utf-8"
        if path == "/generate" and self.on:
            ids, prompt = routed(body["text"]), PROMPTS[body["text"]][1]
            for a, b in [(0, prompt), *((i, i + 1) for i in range(prompt, len(ids)))]:
                stored = self.torch.full((3, b - a, 8), -1, dtype=self.torch.int32)
                stored[1:, :, :2] = self.torch.tensor(ids[a:b, 1:].transpose(1, 0, 2))
                self.passes.append({
                    "forward_pass_id": len(self.passes), "rank": 0, "gatherer_key": "primary",
                    "input_ids": list(range(a, b)), "positions": list(range(a, b)),
                    "extend_seq_lens": [b - a] if a == 0 else None, "forward_mode": 1 if a == 0 else 2,
                    "topk_ids_of_layer": stored, "misc_objects": [],
                })  # fmt: skip
            return as_json({"text": " x", "meta_info": {"id": "0"}})
        if path == "/start_expert_distribution_record":
            self.on = True
            return text, b"Start recording the expert distribution.\n"
        if path == "/stop_expert_distribution_record":
            self.on = False
            return text, b"Stop recording the expert distribution.\n"
        if path == "/dump_expert_distribution_record":
            where = self.torch.arange(4).repeat(3, 1)
            found = {"records": self.passes, "last_physical_to_logical_map": where}
            self.torch.save(found, self.folder / "expert_distribution_recorder_1764500000.5_0.pt")
            return text, b"Dump expert distribution record.\n"
        return None


def test_the_client_of_sglang_reads_what_the_recorder_wrote(tmp_path):
    torch = pytest.importorskip("torch", reason="SGLang's files are read with torch, which is optional")
    with Server(Recorder(tmp_path, torch)) as server:
        client("sglang_client", server, tmp_path, "--recorder", tmp_path)
    calls = [path for path, _ in server.asked]
    assert calls == ["/start_expert_distribution_record", "/generate", "/generate", "/stop_expert_distribution_record",
                     "/dump_expert_distribution_record"]  # fmt: skip
    assert assert_is_what_was_routed(tmp_path)["starts"].tolist() == [0, 3, 4, 5, 6]


class Llama:
    """llama-server's /completion (tools/server), and its log with the callback of common/debug.cpp in it (b8842)."""

    def __init__(self, path):
        self.path = path
        path.write_text("main: model loaded\n" + log({1: [[3, 2]], 2: [[0, 1]]}))  # what came before is not ours

    def __call__(self, path, body):
        if path != "/completion" or body["cache_prompt"] or "n_predict" not in body:
            return None
        ids, prompt = routed(body["prompt"]), PROMPTS[body["prompt"]][1]
        parts = [ids[:prompt], *(ids[i : i + 1] for i in range(prompt, len(ids)))]
        text = log(*({layer: part[:, layer].tolist() for layer in (1, 2)} for part in parts))
        with self.path.open("a") as file:
            file.write(text)
        generated = len(ids) + 1 - prompt
        return as_json({
            "index": 0, "content": " x", "tokens": [], "id_slot": 0, "stop": True, "model": "m",
            "tokens_predicted": generated, "tokens_evaluated": prompt, "generation_settings": {},
            "prompt": body["prompt"], "has_new_line": False, "truncated": False, "stop_type": "limit",
            "stopping_word": "", "tokens_cached": len(ids), "timings": {},
        })  # fmt: skip


def test_the_client_of_llama_cpp_reads_what_the_server_logged(tmp_path):
    with Server(Llama(tmp_path / "server.log")) as server:
        client("llama_cpp_client", server, tmp_path, "--log", tmp_path / "server.log")
    assert assert_is_what_was_routed(tmp_path)["starts"].tolist() == [0, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("name", "words"),
    [("vllm_client", ["--model", "m"]), ("sglang_client", ["--top-k", "2"]), ("llama_cpp_client", ["--log", __file__])],
)
def test_a_server_that_refuses_or_is_gone_is_one_line(tmp_path, name, words):
    with Server(lambda path, body: None) as server:
        done = client(name, server, tmp_path, *words, code=1)
    assert done.stderr.startswith(server.url)
    assert done.stderr.endswith(": 404 Not Found: no such call\n")
    gone = client(name, server.url, tmp_path, *words, code=1).stderr
    assert "no answer (" in gone
    assert gone.endswith("; is the server running?\n")
    assert gone.count("\n") == 1
    assert not (tmp_path / "t.parquet").exists()
