"""LaTeX escapes what it is given."""

from lab.paper.latex import escape_tex, latex_table


def test_latex() -> None:
    assert escape_tex("a_b {50%} $x$ \\d ~^#&±") == (
        r"a\_b \{50\%\} \$x\$ \textbackslash{}d \textasciitilde{}\textasciicircum{}\#\&$\pm$"
    )
    table = latex_table(
        ["a", "b"], [("", [["x_1", "1"]]), ("Head & tail", [["y", "2"]])], caption="c"
    )
    assert table.count(r"\midrule") == 2
    assert r"\multicolumn{2}{@{}l}{\textit{Head \& tail}} \\" in table
    assert table.count("{") == table.count("}")
