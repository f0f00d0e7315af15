"""Decides, for every request and every denoising step, which instance runs it and at which threshold."""
