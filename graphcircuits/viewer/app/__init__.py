"""The page that people look at: its markup, its style and its script.

`page.html` is the body, `style.css` the style, and the script is the files that `scripts.txt` names
joined in its order, which is also the order in which they build on each other. They are plain
JavaScript that a browser runs as it is.
"""

from importlib.resources import files

SCRIPTS = tuple(files(__name__).joinpath("scripts.txt").read_text("utf-8").split())
