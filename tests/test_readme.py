"""The Python blocks of the README run in order, and give the values they claim.

A line `expression  # -> value` is checked; numbers may be rounded to three decimals.
"""

import ast
import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def run_block(block: str, namespace: dict[str, object]) -> int:
    """Run `block` in `namespace`, compare every claimed value, and return how many there were."""
    lines = block.splitlines()
    claims = 0
    for statement in ast.parse(block).body:
        last_line = lines[(statement.end_lineno or statement.lineno) - 1]
        _, arrow, claim = last_line.partition("# -> ")
        if not arrow:
            exec(compile(ast.Module([statement], []), "<README>", "exec"), namespace)
            continue
        assert isinstance(statement, ast.Expr), f"no value to compare: {last_line}"
        value = eval(compile(ast.Expression(statement.value), "<README>", "eval"), namespace)
        assert value == pytest.approx(ast.literal_eval(claim), abs=5e-4), last_line
        claims += 1
    return claims


@pytest.mark.slow
@pytest.mark.usefixtures("small_gpt2")
def test_readme_blocks_run_and_give_what_they_claim() -> None:
    namespace: dict[str, object] = {}
    blocks = python_blocks(README.read_text(encoding="utf-8"))
    assert sum([run_block(block, namespace) for block in blocks]) > 0


def test_a_false_claim_is_caught() -> None:
    [block] = python_blocks("Text.\n\n```python\nx = 2\n[x / 3,\n 1.0]  # -> [0.667, 1.0]\n```\n")
    assert run_block(block, {}) == 1
    with pytest.raises(AssertionError, match=r"0\.668"):
        run_block(block.replace("0.667", "0.668"), {})
    with pytest.raises(AssertionError, match="no value to compare"):
        run_block("x = 2  # -> 2", {})
