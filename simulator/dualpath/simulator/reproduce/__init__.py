"""The paper's tables and figures, run again by simulation and compared number by number."""
