"""The study's printed numbers: an audit that recomputes them, and ours beside them (thinker-spec 13, 20, 21)."""
