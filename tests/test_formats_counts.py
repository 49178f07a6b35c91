"""Counts of experts: told from traces, and refused as what they are."""

import pytest
from import_cases import refusal

from slotwise.traces.format_counts import sniff


@pytest.mark.parametrize("head", ["", "-1 2 8\n"])
def test_counts_are_known_and_are_no_trace(tmp_path, head):
    path = tmp_path / ".coli_usage"
    path.write_text(head + "".join(f"{layer} {expert} {expert * 7}\n" for layer in range(200) for expert in range(8)))
    assert "counts only (layer, expert, count): they have no order and cannot be replayed" in refusal(path)


@pytest.mark.parametrize(
    "text", ["0 1 2\n", "0 1 2 3\n0 1 2 3\n", "0 0 1 3:0.5\n0 0 2 3:0.5\n", "0,1,2\n0,1,2\n", "\n\n"]
)
def test_what_looks_like_counts_is_not_taken_for_them(tmp_path, text):
    assert not sniff(tmp_path, text.encode())
