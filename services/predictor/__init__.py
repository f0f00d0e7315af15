"""Predicts how many denoising steps requests have left, under each candidate threshold."""
