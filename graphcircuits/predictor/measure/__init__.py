"""What a predictor reads from a subject."""
