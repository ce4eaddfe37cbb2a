"""Methods on subjects: how good, how fast, how costly; tables and pictures of it."""
