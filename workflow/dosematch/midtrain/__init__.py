"""Reinforcement mid-training: hidden thoughts that are rewarded by the text they help to predict (t5-spec)."""
