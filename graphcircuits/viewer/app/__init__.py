"""The page that people look at: its markup, its style and its script.

`page.html` is the body, `style.css` the style, and the script is the files of `SCRIPTS` joined in
this order, which is also the order in which they build on each other. They are plain JavaScript
that a browser runs as it is.
"""

SCRIPTS = (
    "graph.js",
    "ranking.js",
    "measures.js",
    "layout.js",
    "routes.js",
    "pen.js",
    "draw.js",
    "paths.js",
    "scene.js",
    "view.js",
    "frames.js",
    "attention.js",
    "details.js",
    "table.js",
    "certificate.js",
    "curve.js",
    "search.js",
    "export.js",
    "controls.js",
    "keys.js",
    "main.js",
)
