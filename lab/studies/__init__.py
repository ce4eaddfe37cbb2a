"""Studies of what data and parts of the predictor are worth."""
