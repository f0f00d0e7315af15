"""The demo model: a small masked diffusion model of worked arithmetic problems, trained from scratch."""
