"""Other people's models and files, in and out."""
