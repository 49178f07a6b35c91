"""Files of torch.save before torch sees them: what is not believed, and the one line where torch is missing."""

import pickle
import sys
import zipfile

import pytest
from import_cases import refusal


def written(folder, pickled, compression=zipfile.ZIP_STORED, name="archive/data.pkl"):
    path = folder / "t.pt"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(name, pickled)
    return path


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_without_torch_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    said = refusal(written(tmp_path, pickle.dumps({}, 2)))
    assert "a torch file, and torch is not installed; `pip install torch`, or save the ids as npz" in said


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_but_tensors_and_containers_is_unpickled(tmp_path, protocol):
    assert "its pickle wants" in refusal(written(tmp_path, pickle.dumps({"records": [Bomb()]}, protocol)))


@pytest.mark.parametrize(
    ("pickled", "options", "words"),
    [
        (b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.", {}, "its pickle wants __builtin__ bytearray"),
        (b"\x80\x02ctorch.hub\nload\n.", {}, "its pickle wants torch.hub load"),
        (bytes(10**6), {"compression": zipfile.ZIP_DEFLATED}, "a member is compressed, as torch.save never does"),
        (b"\xff", {}, "damaged or truncated torch file"),
        (b"", {}, "damaged or truncated torch file"),
    ],
)
def test_a_file_that_wants_or_promises_more_is_refused(tmp_path, pickled, options, words):
    assert words in refusal(written(tmp_path, pickled, **options))
