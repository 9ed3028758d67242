"""Elastic layers: weight-entangled operations whose active size is an array passed at call time."""
