"""Checks the engine on a machine with a GPU. It needs torch from 2.11 on, numpy, safetensors and msgspec."""
