"""`slotwise capture` from the command line: a folder with a model and a text go in, a trace comes out."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import python, slotwise

import slotwise as library
from slotwise.cli.main import main

WORDS = [f"w{i}" for i in range(97)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and a tokenizer of 97 words, prompts and a text."""
    from capture_cases import tiny, transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    place = tmp_path_factory.mktemp("capture")
    model = tiny("olmoe", num_experts=16)
    model.save_pretrained(place / "model")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(place / "model")
    (place / "prompts.txt").write_text("w5 w6 w7\n\nw8\nw9 w10\n")
    (place / "prompts.jsonl").write_text('{"prompt": "w5 w6 w7", "label": "x"}\n{"prompt": "w8"}\n')
    (place / "text.txt").write_text(" ".join(WORDS[i % 90 + 3] for i in range(100)))
    return place


@pytest.fixture
def capture(place, capsys, monkeypatch):
    """Runs the command in this process, since torch takes seconds to import; returns what it said."""
    monkeypatch.chdir(place)

    def run(*words, code=0, out="t.parquet", model=place / "model", more=("--force",)):
        assert main(["capture", str(model), *words, "-o", str(out), *more]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def test_prompts_are_continued_and_the_summary_says_what_was_recorded(capture, place):
    how = "--prompts prompts.jsonl --batch 2 --max-new-tokens 5 --horizon 1,2 --width 4 --check --json"
    told = json.loads(capture(*how.split()))
    trace = library.open_trace(place / "t.parquet")
    assert told["sha256"] == trace.sha256
    assert (told["n_requests"], told["horizons"], told["predicted_width"], told["recall"]) == (2, [1, 2], 4, 1.0)
    assert [(r["label"], r["prompt_tokens"]) for r in trace.meta.requests] == [("x", 3), ("prompt 1", 1)]
    assert trace.model == "model"
    assert "prompts.jsonl (SHA-256 " in trace.meta.source
    assert "max_new_tokens=5, temperature=0.0, seed=0, batch=2" in trace.meta.source


def test_it_says_file_and_speed_and_every_other_command_takes_the_trace(capture, place):
    told = capture("--prompts", "prompts.txt", "--max-new-tokens", "4", "--check").splitlines()
    assert told[0].startswith("t.parquet: <Trace t: model, ")
    assert " steps, 3 requests, " in told[1]
    assert told[2].startswith("control: 1.000000 of all choices")
    facts = json.loads(slotwise("trace", "info", place / "t.parquet", "--json").stdout)
    assert facts["weights"] is True
    assert facts["predictions"][0]["width"] == 3
    assert slotwise("replay", place / "t.parquet", "--slots", "4", "--width", "2").stdout


def test_the_same_seed_draws_the_same_tokens_and_another_one_others(capture, place):
    def ids(seed):
        capture("--prompts", "prompts.txt", "--max-new-tokens", "8", "--temperature", "1.5", "--seed", seed)
        return library.open_trace(place / "t.parquet").rows("token_id")["token_id"].tolist()

    assert ids("1") == ids("1") != ids("2")


def test_a_text_is_read_in_windows_and_passes(capture, place):
    capture("--text", "text.txt", "--window", "40", "--chunk", "16")
    trace = library.open_trace(place / "t.parquet")
    rows = trace.rows("request", "step", "position", "phase", "token_id")
    assert rows["request"].tolist() == [0] * 40 + [1] * 40 + [2] * 20
    assert rows["position"].tolist() == [*range(40), *range(40), *range(20)]
    assert [len(set(rows["step"][rows["request"] == r].tolist())) for r in range(3)] == [3, 3, 2]
    assert not rows["phase"].any()
    assert rows["token_id"].tolist() == [i % 90 + 3 for i in range(100)]


def test_a_text_in_passes_of_one_token_is_decode_after_the_first(capture, place):
    capture("--text", "text.txt", "--window", "50", "--chunk", "1")
    trace = library.open_trace(place / "t.parquet")
    assert trace.rows("phase")["phase"].tolist() == ([0] + [1] * 49) * 2
    assert trace.n_steps == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompts", "prompts.txt", "--text", "text.txt"), "prompts to continue or a text to read, one of the two"),
        ((), "prompts to continue or a text to read"),
        (("--prompts", "absent.txt"), "absent.txt: no such file"),
        (("--prompts", "model/model.safetensors"), "not UTF-8 text"),
        (("--prompts", "prompts.txt", "--max-new-tokens", "500"), "max_position_embeddings=128; shorten it"),
        (("--prompts", "prompts.txt", "--device", "tpu"), "device 'tpu'; known: cpu, cuda"),
        (("--prompts", "prompts.txt", "--dtype", "int4"), "dtype 'int4'; known: auto, "),
        (("--prompts", "prompts.txt", "--horizon", "9"), "horizon=9, but it must be a whole number from 1 to 3"),
        (("--prompts", "prompts.txt", "--horizon", "x"), "write whole numbers with commas"),
        (("--prompts", "prompts.txt", "--width", "17"), "width=17, but it must be a whole number from 0 to 16"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_rule_and_exit_code_2(capture, place, words, message):
    told = capture("--max-new-tokens", "5", *words, code=2, out="wrong.parquet")
    assert message in told
    assert told.count("\n") == 1
    assert not [path for path in place.iterdir() if path.name.startswith("wrong")]


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": 3}', '{"prompt": ""}', '{"prompt": "w1", "label": 2}'])
def test_a_line_of_jsonl_that_is_no_prompt_is_named(capture, place, line):
    (place / "bad.jsonl").write_text(f'{{"prompt": "w1"}}\n{line}\n')
    assert "bad.jsonl line 2: " in capture("--prompts", "bad.jsonl", code=2, out="wrong.parquet")


def test_a_model_that_is_not_there_is_said_before_anything_is_fetched(capture):
    told = capture("--prompts", "prompts.txt", code=2, out="x.parquet", model="./nowhere")
    assert "model './nowhere': no config.json there; name a folder of a Hugging Face model, or a hub id" in told


def test_an_interrupt_keeps_the_steps_and_says_so(place):
    words = ("--prompts", "prompts.txt", "--max-new-tokens", "120", "--force", "-o", place / "i.parquet")
    # Each write takes longer, so that there is something to interrupt.
    script = (
        "import sys, time; from slotwise.traces import capture_rows as c; from slotwise.cli.main import main\n"
        "write = c.RowWriter.write\n"
        "def slow(*a): time.sleep(0.3); print('written', flush=True); return write(*a)\n"
        "c.RowWriter.write = slow; sys.exit(main(sys.argv[1:]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, "capture", place / "model", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place, env=os.environ,
    )  # fmt: skip
    assert child.stdout
    for _ in range(2):
        assert child.stdout.readline() == "written\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted; complete steps are kept in" in told
    assert library.open_trace(place / "i.parquet").n_tokens >= 3


def test_an_output_that_exists_is_refused_before_the_model_is_loaded(capture, place):
    (place / "there.parquet").write_text("x")
    told = capture("--prompts", "p", code=2, out="there.parquet", model="./nowhere", more=())
    assert "there.parquet exists; choose another name, or replace it with --force" in told


def test_rows_of_a_capture_that_was_broken_off_are_not_overwritten(capture, place):
    (place / "kept.parquet.part").write_text("days of work")
    told = capture("--prompts", "prompts.txt", code=2, out="kept.parquet", model="./nowhere", more=())
    assert "kept.parquet.part is what a capture left that was broken off; keep it with `slotwise trace import" in told
    assert (place / "kept.parquet.part").read_text() == "days of work"


def test_without_torch_the_extra_is_named(tmp_path):
    (tmp_path / "p.txt").write_text("hello")
    told = python(
        "import sys; sys.modules['torch'] = None; from slotwise.cli.main import main\n"
        "sys.stderr = sys.stdout\n"
        f"print(main(['capture', 'some/model', '--prompts', {str(tmp_path / 'p.txt')!r}, '-o', 't.parquet']))"
    )
    assert "capture needs torch and transformers" in told
    assert "pip install 'slotwise[capture]'" in told
    assert told.endswith("\n2\n")


def test_a_real_model_from_capture_to_report(shared, tmp_path):
    """The tiny model that lies beside the checkout was trained on text: what it routes is not random."""
    pytest.importorskip("torch", reason="captures need torch: pip install '.[capture]'")
    pytest.importorskip("transformers", reason="captures need transformers: pip install '.[capture]'")
    (tmp_path / "prompts.txt").write_text("The quick brown fox\nEs war einmal\ndef main(argv):\n    \n")
    told = slotwise(
        "capture", shared / "models" / "tiny-olmoe", "--prompts", "prompts.txt", "-o", "t.parquet", "--batch", "3",
        "--max-new-tokens", "48", "--horizon", "1,2", "--check", "--json", cwd=tmp_path,
    )  # fmt: skip
    result = json.loads(told.stdout)
    assert (result["n_layers"], result["n_experts"], result["top_k"]) == (6, 32, 4)
    assert result["recall"] == 1.0
    facts = json.loads(slotwise("trace", "info", "t.parquet", "--json", cwd=tmp_path).stdout)
    near, far = facts["predictions"]
    assert near["recall"][-1] > 2 * 4 / 32 < far["recall"][-1] < near["recall"][-1]
    assert facts["overlap"]["previous"] > facts["overlap"]["uniform"]
    assert facts["row_bytes"] == [3 * 128 * 64 * 2] * 6
    assert facts["warnings"] == []
    slotwise("compare", "t.parquet", "-o", "report", cwd=tmp_path)
    assert "<html" in (tmp_path / "report" / "report.html").read_text()


def spoilt(place, name, change):
    """A copy of the model whose config.json has been changed."""
    copy = place / name
    shutil.copytree(place / "model", copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | change))
    return copy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 9}, "the weights lack"),
        ({"hidden_size": 256}, "cannot be loaded"),
        ({"num_experts_per_tok": "x"}, "cannot be loaded"),
    ],
)
def test_a_config_that_its_weights_do_not_fit_is_refused_in_a_line(capture, place, change, said):
    copy = spoilt(place, f"spoilt-{next(iter(change))}", change)
    told = capture("--prompts", "prompts.txt", code=2, out="no.parquet", model=copy)
    assert said in told
    assert told.count("\n") == 1
    assert not list(place.glob("no.parquet*"))


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_weights_that_were_cut_are_refused_in_a_line(capture, place, size):
    copy = spoilt(place, f"cut-{size}", {})
    (file,) = copy.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:size])
    told = capture("--prompts", "prompts.txt", code=2, out="no.parquet", model=copy)
    assert "cannot be loaded" in told
    assert told.count("\n") == 1


def test_numbers_that_cannot_be_drawn_with_are_refused_before_the_model_is_loaded(capture):
    for words, said in ((("--seed", "9" * 30), "seed"), (("--temperature", "1e-45"), "from 0.001 on")):
        assert said in capture("--prompts", "prompts.txt", *words, code=2, model="./nowhere")


def test_prompts_end_at_line_ends_alone_and_are_not_overwritten(capture, place):
    (place / "odd.JSONL").write_text('\ufeff{"prompt": "w5\\u2028w6"}\n{"prompt": "w7\u2028w8"}\r\n', newline="")
    assert json.loads(capture("--prompts", "odd.JSONL", "--max-new-tokens", "2", "--json"))["n_requests"] == 2
    (place / "half.jsonl").write_text('{"prompt": "\\ud800 w5"}\n')
    assert "half of a surrogate pair" in capture("--prompts", "half.jsonl", code=2)
    assert "another file" in capture("--prompts", "prompts.txt", code=2, out="prompts.txt")
    assert (place / "prompts.txt").read_text().startswith("w5")
