"""The engine: step jobs in, batched denoising steps, results out."""
