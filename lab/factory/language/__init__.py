"""Small language models, trained on text that every machine has.

`text` collects it, `tokens` makes tokenizers of it, `designs` says what a model of a name looks
like and which ones there are, `train` trains one, `folder` keeps models and their reports on disk,
and `build` makes all of them, side by side. docs/small-language-models.md shows what comes of it.
"""
