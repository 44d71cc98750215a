"""Publishes a daemon's states and events on an MQTT broker, and receives what other daemons publish."""
