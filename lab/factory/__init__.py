"""What makes the subjects, corpora, small language models and predictors that ship."""
