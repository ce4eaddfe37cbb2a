"""The commands, one file each, and what they share; nothing heavy is imported until they run."""
