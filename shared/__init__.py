"""The contracts between services: messages, subjects, bus, settings, database models, telemetry."""
