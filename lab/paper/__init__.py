"""The paper's experiment: sweeps, their tables, findings and pages."""
