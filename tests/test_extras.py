import sys

import pytest

from castling.extras import import_extra
from castling.report.plotting import new_figure


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "castling-vit\[report\]"'):
        new_figure(1, 1)


def test_an_extra_that_is_itself_broken_says_so(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs"):
        import_extra("broken_extra", "report")
