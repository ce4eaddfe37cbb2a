"""The README as the package index shows it.

Links and pictures that point into the repository lead nowhere there, and the repository has no
public address that they could be completed with. So `for_index` leaves their words and takes the
link away; the picture gives way to its description. Fenced code and links to the web stay as they
are. Hatchling calls `IndexReadme` when it builds a distribution (`pyproject.toml`).
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_WEB = r"(?!https?://|mailto:|#)"
# A picture may itself be the words of a link.
_PICTURE = re.compile(rf"!\[([^\]]*)\]\({_WEB}[^)]*\)")
_LINK = re.compile(rf"(?<!!)\[([^\]]*)\]\({_WEB}[^)]*\)")
_TAG = re.compile(rf"<(?:img|source)\b[^>]*?\bsrc(?:set)?=\"{_WEB}[^\"]*\"[^>]*>", re.DOTALL)
_ALT = re.compile(r"\balt=\"([^\"]*)\"")


def for_index(text: str) -> str:
    """Markdown without links and pictures that only the repository has."""
    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _unlinked(part) for part in parts)


def _unlinked(text: str) -> str:
    text = _TAG.sub(lambda tag: (_ALT.search(tag[0]) or [None, ""])[1] or "", text)
    return _LINK.sub(r"\1", _PICTURE.sub(r"\1", text))


class IndexReadme(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text)}
