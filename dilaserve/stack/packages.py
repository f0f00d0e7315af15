"""Packages of each service's group that other groups may lack."""

PACKAGES = {
    "gateway": ("fastapi", "uvicorn", "transformers", "sqlalchemy"),
    "scheduler": ("transformers", "uvloop"),
    "predictor": ("lightgbm",),
    "worker": ("torch", "safetensors"),
    "reconfigurator": ("pyomo", "cbcbox", "sqlalchemy", "asyncpg", "alembic"),
}
