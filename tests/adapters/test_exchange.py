"""The Python blocks of docs/exchange.md run in order, and give the values they claim."""

from pathlib import Path

import pytest

from tests.test_readme import python_blocks, run_block

PAGE = Path(__file__).parents[2] / "docs" / "exchange.md"


def test_the_page_on_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = python_blocks(PAGE.read_text(encoding="utf-8"))
    assert sum([run_block(block, namespace) for block in blocks]) == 4
