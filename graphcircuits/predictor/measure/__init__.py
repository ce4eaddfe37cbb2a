"""What a predictor reads from a subject: sums of products, scaled, or the paper's six vectors."""
