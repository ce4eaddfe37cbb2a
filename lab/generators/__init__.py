"""What makes the split and the tables of cases."""
