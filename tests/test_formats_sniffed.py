"""Sniffing: what a file holds says which one format it is in, and captures that lie beside the checkout say theirs."""

import json
from codecs import BOM_UTF8

import pytest
import test_formats_llama_callback as callback
import test_formats_llama_moe_bin as streams
import test_formats_llama_moe_trace as tables
import test_formats_logs as logs
import test_formats_records as records
import test_formats_vllm as vllm
from import_cases import written

from slotwise.traces.format_capture import MAGIC
from slotwise.traces.opening import _modules, open_trace

COUNTED = "0,5\n0,6\n"  # sniffed, and refused: counts cannot be replayed
FILES = [
    ("capture", MAGIC + b"{}\n"),
    ("llama-callback", callback.log(callback.PROMPT)),
    ("llama-moe-bin", streams.bare()),
    ("llama-moe-bin", streams.mblt()),
    ("llama-moe-trace", tables.PLACED),
    ("llama-moe-trace", tables.RANKED),
    ("llama-moe-trace", COUNTED),
    ("colibri", logs.COLIBRI),
    ("demand-log", logs.ROUTE),
    ("demand-log", logs.UNION),
    ("vllm-logger", records.LOGGER),
    ("vllm-logger", records.LOGGER.removeprefix(records.META)),
    ("lattice", records.LATTICE),
    ("rtrace", records.rtrace()),
    ("gpt-oss-fingerprint", json.dumps(records.fingerprint())),
    ("vllm", vllm.npy()),
    ("vllm", vllm.CODED),
    ("vllm", json.dumps([vllm.response()], indent=2)),
]


def sniffed(path) -> list[str]:
    head = path.read_bytes()[:4096]
    return [name for name, module in _modules().items() if module.sniff(path, head)]


@pytest.mark.parametrize(("name", "data"), FILES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FILES)])
def test_a_file_is_sniffed_as_one_format(tmp_path, name, data):
    assert sniffed(written(tmp_path, data)) == [name]


@pytest.mark.parametrize(
    ("name", "data"),
    [(name, data) for name, data in FILES if isinstance(data, str) and data != COUNTED],
    ids=lambda value: value[:12],
)
@pytest.mark.filterwarnings("ignore::slotwise.TraceWarning")
def test_a_byte_order_mark_at_the_start_changes_nothing(tmp_path, name, data):
    plain, marked = written(tmp_path, data, "plain"), written(tmp_path, BOM_UTF8 + data.encode(), "marked")
    assert open_trace(marked).digest() == open_trace(plain).digest() == open_trace(marked, format=name).digest()


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"{}\n", b"\x00" * 64, b"\xff" * 64, b"1,2,3", b"0", b"a,b\n1,2\n", b"PK"]
)
def test_what_is_hardly_a_file_crashes_no_sniffing(tmp_path, data):
    assert len(sniffed(written(tmp_path, data))) <= 1


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("bigmoeonedge/*.route.csv", "bmoe"),
        ("deepseek-v2-lite/raw/*.txt", "esft"),
        ("*/*.npz", "npz"),
        ("*/*-curve.csv", None),
    ],
)
def test_captures_beside_the_checkout_are_sniffed_as_one_format(shared, pattern, name):
    found = [sniffed(path) for path in sorted((shared / "traces").glob(pattern))]
    assert found
    assert all(each == ([name] if name else []) for each in found)
