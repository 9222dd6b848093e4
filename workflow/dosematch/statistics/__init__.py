"""Paired statistics: exact McNemar, question-cluster bootstrap, decontaminated counts, the study's summary."""
