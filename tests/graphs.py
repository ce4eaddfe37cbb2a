"""Random component graphs, grouped keys and parallel layers among them."""

from hypothesis import strategies as st

from graphcircuits.graph import ComponentGraph


@st.composite
def graphs(draw: st.DrawFn) -> ComponentGraph:
    n_kv_heads = draw(st.integers(1, 3))
    n_heads = n_kv_heads * draw(st.integers(1, 3))
    return ComponentGraph(
        draw(st.integers(1, 4)), n_heads, n_kv_heads=n_kv_heads, parallel=draw(st.booleans())
    )
