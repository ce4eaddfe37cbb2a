"""What a predictor knows of itself: calibration, familiarity, trust."""
