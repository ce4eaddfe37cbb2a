"""Links that lead out of the docs: to the repository where it has an address, else plain text; and
links to notebooks, which lead to the pages that the site makes of them.

In the repository `[CONTRIBUTING.md](../CONTRIBUTING.md)` leads from file to file. The site holds
the docs alone, so that there the file is linked at `repo_url`, or named where there is none.
"""

import posixpath
import re
from typing import Any

NOTEBOOK = re.compile(r"\]\(((?:\.\./)*notebooks/\w+)\.ipynb")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def outward(link: re.Match[str]) -> str:
        text, path = link.groups()
        place = posixpath.normpath(posixpath.join("docs", folder, path))
        if place.startswith("docs/"):
            return link.group(0)
        if not config.repo_url:
            return f'<span title="{place}, in the repository">{text}</span>'
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{place})"

    return NOTEBOOK.sub(r"](\1.md", LINK.sub(outward, markdown))
