"""Predictors of an architecture's score from its features, refitted as results arrive."""
