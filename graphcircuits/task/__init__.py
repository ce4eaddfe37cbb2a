"""What a subject is asked: clean and corrupted prompts with their loss, and files of them."""
