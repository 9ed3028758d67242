"""What `python -m tools.convert_gguf` refuses. A real file is in tests/hf/test_smollm2.py."""

import importlib.util

import in_process


def test_refusals(tmp_path, monkeypatch):
    real, other = tmp_path / "real.gguf", tmp_path / "other.gguf"
    real.write_bytes(b"GGUF")
    other.write_bytes(b"PK\x03\x04")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda *name: None if name == ("gguf",) else find(*name))
    cases = [
        (tmp_path / "none.gguf", tmp_path / "out", "none.gguf"),
        (other, tmp_path / "out", "PK"),
        (real, tmp_path, str(tmp_path)),
        (real, tmp_path / "out", "jaxnas[gguf]"),
    ]
    for source, output, name in cases:
        said = in_process.main("tools.convert_gguf", f"--gguf={source}", f"--output={output}", code=2)
        assert name in said
