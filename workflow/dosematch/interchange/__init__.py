"""Results of other evaluation tools, read into one normal form and compared; the study's own, written as theirs."""
