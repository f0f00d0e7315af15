"""The families of models: one module each, listed in registry.py."""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.registry import FAMILIES, parse_config, read_config

__all__ = ["FAMILIES", "ModelConfig", "parse_config", "read_config"]
