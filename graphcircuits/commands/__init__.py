"""Commands too long for `cli`, one file each; nothing heavy is imported until they run."""
