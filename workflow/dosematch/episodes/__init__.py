"""Episodes: one question in, segments to train on and a step record out."""
