"""Revision numbers: raised whenever scores change, and nobody is left to forget it."""

import pytest

from tests.revisions import behind, current, fingerprint, normalised, recorded


def test_changed_code_has_a_new_revision_or_the_same_scores() -> None:
    """A reminder: what it says is to be done by whoever changed the code."""
    now, before = current(), recorded()
    changed = sorted(name for name in now if now[name] != before.get(name))
    assert not changed, (
        f"the code of {', '.join(changed)} changed: raise its revision if scores change (of a "
        "method in METHODS or FLOORS; SHARED_REVISION, CURVE_REVISION and CERTIFICATE_REVISION are "
        "in compare/runs.py), "
        "then run: python -m tests.revisions"
    )
    assert now.keys() == before.keys()


def test_comments_and_docstrings_do_not_count() -> None:
    plain = "def f(x):\n    return x + 1\n"
    words = '"""Module."""\n\ndef f(x):\n    """Doc."""\n    # why\n    return (x + 1)\n'
    assert normalised(words) == normalised(plain)
    assert normalised(plain) != normalised(plain.replace("1", "2"))


def test_a_method_depends_on_what_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = behind("graphcircuits.methods.eap", ("methods", "predictor"))
    assert "graphcircuits.methods.eap" in modules
    assert "graphcircuits.methods.acdc" not in modules
    before = fingerprint(modules)
    monkeypatch.setattr("tests.revisions.normalised", lambda text: f"{len(text)}")
    assert fingerprint(modules) != before
