"""The paths of the studies' input and output."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "experiments" / "data" / "h100-llada8b.csv"
ROOFLINE = PROFILE.with_name("h100-llada8b-roofline.csv")
STEPS = PROFILE.with_name("steps-llada-gsm8k.csv")
DREAM_PROFILE = PROFILE.with_name("h100-dream7b.csv")
DREAM_STEPS = PROFILE.with_name("steps-dream-gsm8k.csv")
QUICK = ROOT / "build" / "quick"  # ignored by git
