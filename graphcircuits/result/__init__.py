"""What a method found: scores, views of them, and their files."""
