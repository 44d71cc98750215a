"""Sends metrics, events and training steps to an OpenTelemetry collector by OTLP. `exporter` needs the otlp extra."""
