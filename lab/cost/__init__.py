"""What methods cost: work, span, time and memory."""
